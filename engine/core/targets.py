"""Names in a catalog that say what a machine must have, and how kernels are named."""

import re
from collections.abc import Mapping
from types import MappingProxyType

from engine.core.schema import DeviceName

INSTRUCTION_SETS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "portable": ("portable",),
        "avx2": ("portable", "avx2"),
        "avx512": ("portable", "avx2", "avx512"),
        "amx": ("portable", "avx2", "avx512", "amx"),
        "neon": ("portable", "neon"),
    }
)
"""Instruction sets of CPU cores: what a kernel path of that name provides."""
_COMPUTE_CAPABILITY = re.compile(r"sm_[1-9][0-9]{1,2}a?")
UNTUNED = frozenset({"layout", "prompt_layout"})
"""Parameters that the variant names already."""


def is_target(device: DeviceName, name: str) -> bool:
    """Whether ``name`` can be required on a device: an instruction set, or as in ``sm_90``."""
    if device == "cpu":
        return name in INSTRUCTION_SETS
    return _COMPUTE_CAPABILITY.fullmatch(name) is not None


def kernel_id(device: DeviceName, variant: str, parameters: Mapping[str, int | str]) -> str:
    """Return a kernel's catalog id: device, variant, and the parameters that tune it, sorted.

    As in ``cpu.rms_norm``, or ``cpu.linear.q8p16.int12_g32@pieces=12,run=4``.
    """
    tuned = sorted(parameters.keys() - UNTUNED)
    suffix = ",".join(f"{name}={parameters[name]}" for name in tuned)
    return f"{device}.{variant}" + (f"@{suffix}" if suffix else "")
