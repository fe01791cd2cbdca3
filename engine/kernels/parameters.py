"""Parameters of kernel variants: how a launch cuts its work. No value changes a bit.

A catalog id is ``kernel`` or ``kernel@name=value,...`` with names ascending. A parameter that an id
does not name is chosen at each replay, by rows, sizes and threads.

linear, rms_norm, embed, rope_store_kv, gather_rows
    pieces: into how many pieces each thread's share of the work is cut; threads that are done take
    over pieces of others. A piece of a linear is at least two panels of 16 columns.
linear
    run: panels that rows of class bf16_g32 or int12_g32 walk together when they are alone in the
    launch.
    own: up to so many rows of one class, each thread converts the activations for itself, instead
    of sharing that and waiting for the others.
paged_attention
    claim: work items (queries of a sequence and KV head) that a thread takes at a time.
"""

from collections.abc import Mapping
from types import MappingProxyType

from msgspec import Struct

from engine.errors import DeviceError


class Parameter(Struct, frozen=True):
    """The values of one parameter: multiples of ``step`` from ``smallest`` to ``largest``."""

    smallest: int
    largest: int
    step: int = 1

    def takes(self, value: int) -> bool:
        """Say whether this is one of the values."""
        return self.smallest <= value <= self.largest and value % self.step == 0


PIECES = Parameter(1, 256)
PARAMETERS: Mapping[str, Mapping[str, Parameter]] = MappingProxyType(
    {
        "embed": {"pieces": PIECES},
        "rms_norm": {"pieces": PIECES},
        "linear": {"pieces": PIECES, "run": Parameter(2, 8, 2), "own": Parameter(1, 8)},
        "rope_store_kv": {"pieces": PIECES},
        "paged_attention": {"claim": Parameter(1, 256)},
        "gather_rows": {"pieces": PIECES},
    }
)
"""Parameters that the CPU device's kernels take, by op (cpu_ext/src/launch.cpp checks them too)."""


def variant_id(base: str, parameters: Mapping[str, int]) -> str:
    """Return the id of a kernel with these parameters; ``base`` itself when there are none."""
    values = ",".join(f"{name}={parameters[name]}" for name in sorted(parameters))
    return f"{base}@{values}" if values else base


def split_id(kernel_id: str) -> tuple[str, dict[str, int]]:
    """Return the kernel and the parameters that an id names.

    Raises DeviceError for an id that ``variant_id`` would not write.
    """
    base, separator, text = kernel_id.partition("@")
    parameters = {}
    for part in text.split(",") if separator else ():
        name, _, value = part.partition("=")
        if value.isascii() and value.isdigit() and len(value) < 10:
            parameters[name] = int(value)
    if variant_id(base, parameters) != kernel_id:
        raise DeviceError(
            f"kernel id {kernel_id!r}: expected kernel@name=value,name=value with names ascending"
        )
    return base, parameters


def check_parameters(kernel_id: str, op: str, parameters: Mapping[str, int]) -> None:
    """Raise DeviceError for a parameter that kernels of this op do not take, or its value."""
    known = PARAMETERS.get(op, {})
    for name, value in parameters.items():
        if name not in known:
            taken = ", ".join(known) or "none"
            raise DeviceError(f"kernel {kernel_id!r}: no parameter {name!r}; {op} takes {taken}")
        allowed = known[name]
        if not allowed.takes(value):
            raise DeviceError(
                f"kernel {kernel_id!r}: {name} must be {allowed.smallest} to {allowed.largest} "
                f"in steps of {allowed.step}, found {value}"
            )
