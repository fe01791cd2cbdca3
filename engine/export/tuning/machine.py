"""The machine that an export measures on."""

import platform
from pathlib import Path

from engine.core.schema import Machine

CPUINFO = Path("/proc/cpuinfo")


def this_machine(threads: int, isa: str, measured: int) -> Machine:
    """Return this machine's record; ``measured`` in Unix seconds."""
    return Machine("export", processor(), threads, isa, measured)


def processor(cpuinfo: Path = CPUINFO) -> str:
    """The processor's name, with family and model where the system gives them."""
    found: dict[str, str] = {}
    for line in cpuinfo.read_text().splitlines() if cpuinfo.exists() else ():
        name, _, value = line.partition(":")
        found.setdefault(name.strip(), value.strip())
    name = found.get("model name", platform.machine())
    if "cpu family" in found and "model" in found:
        name += f", family {found['cpu family']} model {found['model']}"
    return name
