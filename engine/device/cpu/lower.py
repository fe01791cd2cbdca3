"""Turns a program into the launches that the native extension takes."""

from engine.errors import DeviceError
from engine.ir.program import Buffer, Launch, Program, Space
from engine.kernels.cpu import check_launch

Operand = tuple[str, int | str]
"""("arena", byte offset), ("weight", number), ("input", name) or ("state", name)."""
NativeLaunch = tuple[str, list[Operand], list[Operand], dict[str, int | float | str]]
"""Op, inputs, outputs, attributes: what ``flare_cpu.Executable`` takes."""
ROW_OPS = frozenset({"rms_norm", "linear"})
"""Ops that run over all rows of the launch or over the wanted logits rows."""


def weight_names(program: Program) -> tuple[str, ...]:
    """Names of the storage tensors that a program reads, each once, in launch order."""
    names = (name for launch in program.launches for name in launch.inputs)
    return tuple(
        dict.fromkeys(name for name in names if program.buffers[name].space is Space.WEIGHT)
    )


def lower(program: Program) -> list[NativeLaunch]:
    """Return the native launches; weights are numbered as in ``weight_names``.

    Raises DeviceError for a kernel that the CPU device does not have and for a buffer that the
    memory plan left without a place.
    """
    weights = {name: index for index, name in enumerate(weight_names(program))}
    return [_lower_launch(launch, program, weights) for launch in program.launches]


def _lower_launch(launch: Launch, program: Program, weights: dict[str, int]) -> NativeLaunch:
    check_launch(launch)
    buffers = program.buffers
    inputs = [_operand(buffers[name], weights) for name in launch.inputs]
    outputs = [_operand(buffers[name], weights) for name in launch.outputs]
    attributes = {
        name: int(value) if isinstance(value, bool) else value
        for name, value in launch.attrs.items()
    }
    if launch.op in ROW_OPS:
        attributes["rows"] = str(buffers[launch.outputs[0]].shape[0])
    return launch.op, inputs, outputs, attributes


def _operand(buffer: Buffer, weights: dict[str, int]) -> Operand:
    if buffer.space is Space.WEIGHT:
        return "weight", weights[buffer.name]
    if buffer.space in {Space.INPUT, Space.STATE}:
        return buffer.space.value, buffer.name
    if buffer.offset is None:
        raise DeviceError(f"buffer {buffer.name!r} has no place in the arena")
    return "arena", buffer.offset
