"""How many compute threads a CPU rank takes by itself."""

import math
import os
from pathlib import Path

CPUS = Path("/sys/devices/system/cpu")
QUOTA = Path("/sys/fs/cgroup/cpu.max")


def default_threads(cpus: Path = CPUS, quota: Path = QUOTA) -> int:
    """Physical cores that this process may use, at most what its control group grants."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    if allowed is None:
        return os.cpu_count() or 1
    cores = {_siblings(cpus, cpu) for cpu in allowed}
    return max(1, min(len(cores), _granted(quota)))


def _siblings(cpus: Path, cpu: int) -> str:
    """The logical processors of a core, as the system names them."""
    try:
        return (cpus / f"cpu{cpu}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)


def _granted(quota: Path) -> int:
    """Whole processors of a control group's quota (version 2: "microseconds period")."""
    try:
        limit, period = quota.read_text().split()
    except (OSError, ValueError):
        return 1 << 20
    return 1 << 20 if limit == "max" else math.ceil(int(limit) / int(period))
