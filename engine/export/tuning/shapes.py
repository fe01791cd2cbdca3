"""Launches of a program by what is tuned together: op, kernel, sizes and rows."""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from engine.ir.program import Launch, Program


def shape_key(launch: Launch) -> str:
    """(op, format and classes, sizes), as in ``linear/bf16p16.bf16_t32/960x576``."""
    attrs = launch.attrs
    names = {"embed": ("vocab", "width"), "linear": ("n", "k")}.get(
        launch.op, ("width",) if "width" in attrs else ("heads", "kv_heads", "head_dim")
    )
    sizes = "x".join(str(attrs[name]) for name in names)
    variant = launch.kernel.partition("@")[0].split(".", 1)[1].replace(".", "/", 1)
    return f"{variant}/{sizes}"


def row_symbol(program: Program, launch: Launch) -> str:
    """Return what counts the launch's rows: "tokens" or "logits"."""
    return str(program.buffers[launch.outputs[0]].shape[0])


def by_shape(program: Program) -> Mapping[str, tuple[Launch, ...]]:
    """Group a program's launches by ``shape_key``, in the order of first use."""
    grouped: dict[str, list[Launch]] = {}
    for launch in program.launches:
        grouped.setdefault(shape_key(launch), []).append(launch)
    return {key: tuple(launches) for key, launches in grouped.items()}


def only(program: Program, launches: Sequence[Launch]) -> Program:
    """Return the program with these launches alone; its values keep their places."""
    used = {name for launch in launches for name in (*launch.inputs, *launch.outputs)}
    buffers = {name: buffer for name, buffer in program.buffers.items() if name in used}
    return replace(program, launches=tuple(launches), buffers=buffers)


def with_kernel(program: Program, launches: Sequence[Launch], kernel: str) -> Program:
    """Return a program of these launches, all with this kernel."""
    return only(program, [replace(launch, kernel=kernel) for launch in launches])
