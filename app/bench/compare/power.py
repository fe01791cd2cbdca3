"""Energy of the processor packages, where the kernel lets it be read (RAPL)."""

from pathlib import Path

from msgspec import Struct

ROOT = Path("/sys/class/powercap")
MICRO = 1e-6


class Meter(Struct, frozen=True):
    """The zones that can be read; ``absent``: why there are none, in words for people.

    zones: (file of microjoules, value at which it begins again).
    """

    zones: tuple[tuple[Path, int], ...]
    absent: str | None = None

    def read(self) -> tuple[int, ...] | None:
        """The counters now, in microjoules; None where there are none."""
        try:
            return tuple(int(path.read_text()) for path, _ in self.zones) or None
        except (OSError, ValueError):
            return None

    def joules(self, before: tuple[int, ...] | None) -> float | None:
        """Joules since ``before``, a counter that began again once included."""
        after = self.read()
        if before is None or after is None:
            return None
        pairs = zip(after, before, self.zones, strict=True)
        return MICRO * sum((new - old) % (most + 1) for new, old, (_, most) in pairs)


def open_meter(root: Path = ROOT) -> Meter:
    """The packages' counters (Linux, powercap interface: zones whose name begins "package")."""
    if not root.is_dir():
        return Meter((), f"this system has no {root}")
    zones = []
    for zone in sorted(root.glob("*:*")):
        try:
            if (zone / "name").read_text().startswith("package"):
                most = int((zone / "max_energy_range_uj").read_text())
                int((zone / "energy_uj").read_text())
                zones.append((zone / "energy_uj", most))
        except PermissionError:
            return Meter((), f"{zone}/energy_uj may be read by root only")
        except (OSError, ValueError):
            continue
    return Meter(tuple(zones), None if zones else f"{root} has no processor package")
