"""The kernels that the native CPU device has: catalog ids, what they compute, their classes."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from engine.core.schema import Kernel
from engine.errors import DeviceError
from engine.ir.program import Launch
from engine.kernels.parameters import check_parameters, split_id

AttentionClass = Literal["f32_t64", "bf16_r16t64"]
"""Numerics classes of paged attention, per role; every instruction set computes the same bits.

Keys and values are stored as bfloat16 (nearest even) and walked in tiles of 64 at absolute
positions. q is multiplied by scale * log2(e) in float32. A score adds, per 32 dimensions, the sum
of one fma chain over the even and one over the odd ones, each from 0 (the order of ``bf16_t32``,
engine/kernels/numerics.py). Softmax is online, in float32 and base 2, with 16 partial row sums by
key modulo 16. Outputs add up per 32 keys in the same two chains. Masked keys leave every bit alone.

f32_t64 (generated rows)
    Nothing more is rounded. Every 256 keys (absolute positions) are accumulated from nothing and
    merged in ascending order, so that threads can share one row's keys.
bf16_r16t64 (prompt rows)
    Scaled queries and probabilities are rounded to bfloat16: the order is that of the AMX
    TDPBF16PS instruction. A row's reference for its exponents is a multiple of 16, raised only by a
    tile of which one of 16 sums (of rounded probabilities, by key / 2 modulo 16) exceeds 2^20; what
    was summed before is then multiplied by a power of two.
"""


class CpuKernel(Struct, frozen=True):
    """One native kernel. ``layout``: of its weight; ``prompt_layout``: of the same weight again,
    for rows of the prompt role. Classes: per role, None where rows are exact or have one order for
    every role. parameters: of this variant (``engine.kernels.parameters``).
    """

    id: str
    op: str
    layout: str | None = None
    prompt_class: str | None = None
    generated_class: str | None = None
    prompt_layout: str | None = None
    parameters: Mapping[str, int] = field(default_factory=dict)

    def describe(self) -> Kernel:
        """Return the catalog entry. Any instruction set runs it: all paths give the same bits."""
        layouts = {"layout": self.layout, "prompt_layout": self.prompt_layout}
        layout = {name: value for name, value in layouts.items() if value is not None}
        return Kernel(
            self.id,
            self.op,
            self.id.removeprefix("cpu.").partition("@")[0],
            "cpu",
            {**layout, **self.parameters},
            (),
            self.prompt_class,
            self.generated_class,
        )


def _linear(layout: str, prompt: str, generated: str, second: str | None = None) -> CpuKernel:
    """The id names the class of generated rows, then that of prompt rows where it is another, then
    the layout that prompt rows read where it is another."""
    names = [layout, *dict.fromkeys((generated, prompt)), *([second] if second else ())]
    kernel_id = f"cpu.linear.{'.'.join(names)}"
    return CpuKernel(kernel_id, "linear", layout, prompt, generated, second)


def _table() -> Iterable[CpuKernel]:
    for layout in ("q4p16", "q8p16", "bf16p16"):
        yield CpuKernel(f"cpu.embed.{layout}", "embed", layout)
    for layout in ("q4p16", "q8p16"):
        for generated in ("int12_g32", "bf16_g32", "int8_g32"):
            yield _linear(layout, "bf16_t32", generated)
            yield _linear(layout, "bf16_t32", generated, "bf16p16")
            yield _linear(layout, generated, generated)
        yield _linear(layout, "bf16_t32", "bf16_t32")
    yield _linear("bf16p16", "bf16_t32", "bf16_t32")
    yield CpuKernel("cpu.rms_norm", "rms_norm")
    yield CpuKernel("cpu.rope_store_kv", "rope_store_kv")
    yield CpuKernel("cpu.paged_attention", "paged_attention", None, "bf16_r16t64", "f32_t64")
    yield CpuKernel("cpu.gather_rows", "gather_rows")


CPU_KERNELS: Mapping[str, CpuKernel] = MappingProxyType({k.id: k for k in _table()})
"""Every kernel of the CPU device, by catalog id, without parameters."""


def linear_kernel(
    layout: str, prompt_class: str, generated_class: str, prompt_layout: str | None = None
) -> str:
    """Return the id of the linear kernel with these layouts and class per role.

    Raises DeviceError when the CPU device has none.
    """
    for kernel in CPU_KERNELS.values():
        if (kernel.op, kernel.layout, kernel.prompt_layout) != ("linear", layout, prompt_layout):
            continue
        if (kernel.prompt_class, kernel.generated_class) == (prompt_class, generated_class):
            return kernel.id
    raise DeviceError(
        f"the CPU device has no linear kernel for layout {layout!r} with prompt class "
        f"{prompt_class!r} and generated class {generated_class!r}"
    )


def cpu_kernels(ids: Iterable[str]) -> tuple[Kernel, ...]:
    """Return the catalog entries of these kernel ids, each once, in the order first seen.

    Raises DeviceError for an id that the CPU device does not have.
    """
    return tuple(known_kernel(kernel_id).describe() for kernel_id in dict.fromkeys(ids))


def check_launch(launch: Launch) -> CpuKernel:
    """Return the kernel that a launch names, checked against its op, layout and classes.

    Raises DeviceError that names the kernel and what differs.
    """
    kernel = known_kernel(launch.kernel)
    if kernel.op != launch.op:
        raise DeviceError(f"kernel {kernel.id} computes {kernel.op}, not {launch.op}")
    for name, expected in (
        ("layout", kernel.layout),
        ("prompt_class", kernel.prompt_class if launch.op == "linear" else None),
        ("generated_class", kernel.generated_class if launch.op == "linear" else None),
        ("prompt_layout", kernel.prompt_layout),
    ):
        if expected is not None and launch.attrs.get(name) != expected:
            raise DeviceError(
                f"kernel {kernel.id} has {name} {expected}, "
                f"the launch asks for {launch.attrs.get(name)!r}"
            )
    if "prompt_layout" in launch.attrs and kernel.prompt_layout is None:
        raise DeviceError(f"kernel {kernel.id} reads one weight, the launch has two")
    return kernel


def known_kernel(kernel_id: str) -> CpuKernel:
    """Return the kernel of a catalog id, with its parameters.

    Raises DeviceError for an id that the CPU device does not have.
    """
    base, parameters = split_id(kernel_id) if "@" in kernel_id else (kernel_id, {})
    kernel = CPU_KERNELS.get(base)
    if kernel is None:
        raise DeviceError(
            f"kernel {kernel_id!r} is not one of this CPU device's",
            "The core was exported for another device or by another version: export it again.",
        )
    if not parameters:
        return kernel
    check_parameters(kernel_id, kernel.op, parameters)
    return replace(kernel, id=kernel_id, parameters=parameters)
