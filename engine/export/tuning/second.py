"""A second layout of a quantised weight: bfloat16, for rows of the prompt role.

A prompt row's class rounds the dequantised weight to bfloat16 anyway. Stored so, it has the same
bits and no dequantisation per launch, for about 3.2 times the bytes of the 4-bit layout.
"""

from collections.abc import Collection, Iterable

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from engine.export.formats import round_bfloat16
from engine.export.tuning.shapes import shape_key
from engine.ir.program import Buffer, Launch, Program, Space
from engine.kernels.cpu import linear_kernel
from engine.kernels.layouts import LAYOUTS, dequantise, pack_bf16, packed_bytes

LAYOUT = "bf16p16"
SUFFIX = ".prompt"
"""Behind a weight's name: its storage tensor in the second layout."""


class SecondWeight(Struct, frozen=True):
    """A weight to store once more. layout: the one it has; n, k: its logical sizes."""

    name: str
    weight: str
    layout: str
    n: int
    k: int

    def pack(self, packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the bytes of the second layout, from those of the first."""
        return pack_bf16(round_bfloat16(dequantise(self.layout, packed, self.n, self.k)))


def second_of(launch: Launch) -> SecondWeight | None:
    """Return the weight that a launch could read or reads besides; None where there is no use."""
    attrs = launch.attrs
    if launch.op != "linear" or attrs["layout"] == LAYOUT:
        return None
    classes = str(attrs["prompt_class"]), str(attrs["generated_class"])
    if classes[0] == classes[1] or classes[0] not in LAYOUTS[LAYOUT].classes:
        return None
    weight = launch.inputs[1]
    sizes = int(attrs["n"]), int(attrs["k"])
    return SecondWeight(f"{weight}{SUFFIX}", weight, str(attrs["layout"]), *sizes)


def added_bytes(launches: Iterable[Launch]) -> int:
    """Bytes of the second layout of all weights that these launches read."""
    seconds = {second.name: second for second in map(second_of, launches) if second}
    return sum(packed_bytes(LAYOUT, second.n, second.k) for second in seconds.values())


def second_kernel(launch: Launch) -> str:
    """Return the kernel that reads both layouts of the launch's weight."""
    attrs = launch.attrs
    return linear_kernel(
        str(attrs["layout"]), str(attrs["prompt_class"]), str(attrs["generated_class"]), LAYOUT
    )


def with_second(program: Program, shapes: Collection[str]) -> Program:
    """Return the program whose linears of these shapes (``shape_key``) read both layouts."""
    buffers, launches = dict(program.buffers), []
    for launch in program.launches:
        second = second_of(launch) if shape_key(launch) in shapes else None
        if second is None:
            launches.append(launch)
            continue
        size = packed_bytes(LAYOUT, second.n, second.k)
        buffers[second.name] = Buffer(second.name, Space.WEIGHT, "u8", (size,))
        first, weight, *rest = launch.inputs
        launches.append(
            replace(
                launch,
                kernel=second_kernel(launch),
                inputs=(first, weight, second.name, *rest),
                attrs={**launch.attrs, "prompt_layout": LAYOUT},
            )
        )
    return replace(program, buffers=buffers, launches=tuple(launches))


def first_shape(launch: Launch) -> str:
    """Return ``shape_key`` as it was before ``with_second``."""
    if "prompt_layout" not in launch.attrs:
        return shape_key(launch)
    attrs = launch.attrs
    names = (str(attrs[name]) for name in ("layout", "prompt_class", "generated_class"))
    return shape_key(replace(launch, kernel=linear_kernel(*names)))


def second_weights(programs: Iterable[Program]) -> tuple[SecondWeight, ...]:
    """Return the weights that programs read in the second layout, each once."""
    found: dict[str, SecondWeight] = {}
    for program in programs:
        for launch in program.launches:
            second = second_of(launch) if "prompt_layout" in launch.attrs else None
            if second is not None:
                found.setdefault(second.name, second)
    return tuple(found.values())
