"""Memory that this process may still take on a CPU: the machine's and its control groups'."""

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_UNLIMITED = 1 << 60
"""Version 1 groups write a number near 2^63 for "no limit"."""


def available_bytes(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how many bytes may still be taken: the least of what the kernel calls available
    (``MemAvailable``) and what each control group above the process leaves below its limit.

    Page cache that a group could drop counts as free. Where the system tells none of this (no
    Linux), half of the machine's memory.
    """
    limits = [*_machine(proc), *_groups(proc, cgroups)]
    if not limits:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    return max(min(limits), 0)


def _machine(proc: Path) -> Iterator[int]:
    for line in _text(proc / "meminfo").splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            yield int(rest.split()[0]) * 1024


def _groups(proc: Path, cgroups: Path) -> Iterator[int]:
    for line in _text(proc / "self" / "cgroup").splitlines():
        fields = line.split(":", 2)
        if len(fields) != 3:
            continue
        _, controllers, path = fields
        if controllers == "":
            yield from _room(cgroups, path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            yield from _room(cgroups / "memory", path, *names)


def _room(root: Path, path: str, limit_name: str, usage_name: str, cache: str) -> Iterator[int]:
    """Yield limit - usage + droppable cache of a group and of each group above it."""
    group = PurePosixPath(path.lstrip("/"))
    for relative in (group, *group.parents):
        folder = root / relative
        limit, usage = _number(folder / limit_name), _number(folder / usage_name)
        if limit is not None and usage is not None and limit < _UNLIMITED:
            yield limit - usage + _stat(folder / "memory.stat", cache)


def _stat(path: Path, key: str) -> int:
    for line in _text(path).splitlines():
        name, _, value = line.partition(" ")
        if name == key and value.isdigit():
            return int(value)
    return 0


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
