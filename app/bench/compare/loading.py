"""What the unselected graphs cost: memory and seconds of a start, with and without them."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from app.bench.compare.analysis import Difference, difference
from app.bench.compare.server import Start
from app.bench.figures import Metric
from app.bench.stats import median

LOAD = Metric("load_s", "loading", "s", False, 3)
READY = Metric("ready_s", "process start to ready", "s", False, 3)
RESIDENT = Metric("resident_mib", "resident memory after loading", "MiB", False, 1)
LEVEL = 0.95


class Held(Struct, frozen=True):
    """One leg's starts: medians of seconds and bytes, and what was held.

    held_bytes: the most workspace that no retained graph needs, 0 when pruning is complete.
    retained, pruned: graphs by kind. loaded_bytes: of storage. workspace_bytes: taken.
    """

    starts: int
    load_s: float
    ready_s: float
    phases: dict[str, float]
    resident_bytes: float | None
    held_bytes: int
    retained: dict[str, int]
    pruned: dict[str, int]
    loaded_bytes: int
    workspace_bytes: int


class Loading(Struct, frozen=True):
    """By leg; ``differences``: other against base, start by start. No verdict looks at these."""

    legs: dict[str, Held]
    differences: tuple[Difference, ...]


def loading(starts: Sequence[Start], legs: Sequence[str]) -> Loading:
    """Sum up the starts; ``legs``: base and other, further legs have no difference."""
    by_leg: dict[str, list[Start]] = {}
    for start in starts:
        by_leg.setdefault(start.leg, []).append(start)
    held = {leg: _held(found) for leg, found in by_leg.items()}
    both = [by_leg.get(leg, []) for leg in legs]
    pairs = min(map(len, both))
    found = []
    for metric in (LOAD, READY, RESIDENT):
        values = {
            leg: tuple(v for s in group[:pairs] if (v := _value(s, metric)) is not None)
            for leg, group in zip(legs, both, strict=True)
        }
        if pairs and all(len(v) == pairs for v in values.values()):
            found.append(difference(metric, values, legs, LEVEL, decides=False))
    return Loading(held, tuple(found))


def _value(start: Start, metric: Metric) -> float | None:
    if metric is RESIDENT:
        return None if start.resident_bytes is None else start.resident_bytes / 2**20
    return start.load_s if metric is LOAD else start.ready_s


def _held(starts: Sequence[Start]) -> Held:
    graphs: Mapping[str, Any] = starts[-1].graphs
    resident = [s.resident_bytes for s in starts if s.resident_bytes is not None]
    return Held(
        len(starts),
        median(s.load_s for s in starts),
        median(s.ready_s for s in starts),
        {phase: median(s.phases[phase] for s in starts) for phase in starts[0].phases},
        median(resident) if resident else None,
        max(s.held_bytes for s in starts),
        graphs["retained"],
        graphs["pruned"],
        graphs["storage_bytes"]["loaded"],
        graphs["workspace_bytes"]["reserved"],
    )
