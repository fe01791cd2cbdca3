"""Turns a program into the launches that the native extension takes."""

from engine.errors import DeviceError
from engine.ir.program import PLACED, Buffer, Launch, Program, Space
from engine.kernels.cpu import check_launch

Operand = tuple[str, int | str]
"""("arena", byte offset), ("weight", number), ("input", name) or ("state", name)."""
Attributes = dict[str, int | float | str]
NativeLaunch = tuple[str, list[Operand], list[Operand], Attributes]
"""Op, inputs, outputs, attributes: what ``flare_cpu.Executable`` takes."""
ROW_OPS = frozenset({"rms_norm", "linear"})
"""Ops that run over all rows of the launch or over the wanted logits rows."""


def weight_names(program: Program) -> tuple[str, ...]:
    """Names of the storage tensors that a program reads, each once."""
    return tuple(b.name for b in program.buffers.values() if b.space is Space.WEIGHT)


class Lowering:
    """Lowers the programs of one core: launches that several share are checked once."""

    def __init__(self) -> None:
        self._checked: dict[int, tuple[tuple[Launch, ...], list[Attributes]]] = {}

    def lower(self, program: Program) -> list[NativeLaunch]:
        """Return the native launches; weights are numbered as in ``weight_names``.

        Raises DeviceError for a kernel that the CPU device does not have and for a buffer that
        the memory plan left without a place.
        """
        weights = {name: index for index, name in enumerate(weight_names(program))}
        buffers = program.buffers
        operands = {name: _operand(buffer, weights) for name, buffer in buffers.items()}
        native = []
        for launch, known in zip(program.launches, self._attributes(program), strict=True):
            inputs = [operands[name] for name in launch.inputs]
            outputs = [operands[name] for name in launch.outputs]
            attributes = known
            if launch.op in ROW_OPS:
                attributes = {**known, "rows": str(buffers[launch.outputs[0]].shape[0])}
            native.append((launch.op, inputs, outputs, attributes))
        return native

    def _attributes(self, program: Program) -> list[Attributes]:
        """The launches' attributes, flags as numbers, found by the identity of the launches."""
        launches = program.launches
        if id(launches) not in self._checked:
            self._checked[id(launches)] = launches, [_attributes(launch) for launch in launches]
        return self._checked[id(launches)][1]


def _attributes(launch: Launch) -> Attributes:
    """The op's attributes, and the parameters of the kernel."""
    kernel = check_launch(launch)
    attributes: Attributes = {
        name: int(value) if isinstance(value, bool) else value
        for name, value in launch.attrs.items()
    }
    attributes.update(kernel.parameters)
    return attributes


def _operand(buffer: Buffer, weights: dict[str, int]) -> Operand:
    if buffer.space is Space.WEIGHT:
        return "weight", weights[buffer.name]
    if buffer.offset is not None:
        return "arena", buffer.offset
    if buffer.space in PLACED:
        raise DeviceError(f"buffer {buffer.name!r} has no place in the arena")
    return buffer.space.value, buffer.name
