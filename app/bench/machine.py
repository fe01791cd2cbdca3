"""What a result says of the machine it was measured on."""

import os
import platform
from pathlib import Path

ISA = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16", "asimddp", "i8mm")


def machine() -> dict[str, str]:
    """Processor, instruction sets, cores, memory, system and load, as text."""
    fields = _fields(Path("/proc/cpuinfo"))
    flags = (fields.get("flags") or fields.get("Features") or "").split()
    memory = _fields(Path("/proc/meminfo")).get("MemTotal", "0 kB").split()[0]
    model = fields.get("model name", platform.machine())
    if fields.get("model", "").isdigit():
        model += f", family {fields['cpu family']} model {fields['model']}"
    return {
        "processor": model,
        "instruction sets": " ".join(name for name in ISA if name in flags) or "none of note",
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{int(memory) / 2**20:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load at the start": f"{os.getloadavg()[0]:.2f}",
    }


def _fields(path: Path) -> dict[str, str]:
    """The first value of each ``name : value`` line."""
    found: dict[str, str] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        name, colon, value = line.partition(":")
        if colon:
            found.setdefault(name.strip(), value.strip())
    return found
