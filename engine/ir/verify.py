"""The IR verifier: what must hold of a program before anything runs it.

Most of it depends on the *body* only (launches, and buffers without their offsets), which the
programs of one model share, so it is checked once per body. Placement in the arena is checked
for each program.
"""

import math
from collections.abc import Iterable, Mapping

from msgspec import Struct

from engine.errors import CoreError
from engine.ir.ops import INPUTS, OPS, STATE
from engine.ir.program import (
    PLACED,
    SYMBOLS,
    Attr,
    Buffer,
    Dim,
    Domain,
    DType,
    Launch,
    Program,
    Space,
)
from engine.ir.signatures import (
    ATTRIBUTES,
    SIGNATURES,
    Operand,
    Signature,
    fits,
    relations,
    row_symbol,
)

ALIGNMENT = 64
"""Arena offsets are multiples of this many bytes."""
ITEM_BYTES: Mapping[DType, int] = {"f32": 4, "i32": 4, "u8": 1}
_LARGEST = 2**31 - 1


class ProgramInvalidError(CoreError):
    """A program breaks a rule of the IR, or contradicts its graph or the model."""


class Overlap(Struct, frozen=True):
    """Two arena buffers that are alive at once, in launch ``at``.

    in_place: they may share one place exactly, since ``at`` overwrites the one with the other.
    """

    first: str
    second: str
    at: int
    in_place: bool = False


class _Body(Struct, frozen=True):
    """What was found of a body: its launches, buffers without offsets, and live pairs."""

    launches: tuple[Launch, ...]
    types: Mapping[str, tuple[Space, DType, tuple[Dim, ...]]]
    overlaps: tuple[Overlap, ...]


def verify_programs(programs: Iterable[Program]) -> None:
    """Check programs against the op specification.

    Launches that are the same object are analysed once. Raises ProgramInvalidError that
    names the program, the launch, what was expected and found.
    """
    bodies: dict[int, _Body] = {}
    for program in programs:
        try:
            _verify(program, bodies)
        except _Fault as fault:
            raise ProgramInvalidError(f"program {program.name}: {fault}") from None


class _Fault(Exception):
    """A broken rule; the caller adds the program's name."""


def _verify(program: Program, bodies: dict[int, _Body]) -> None:
    body = bodies.get(id(program.launches))
    if body is None or not _same_types(program.buffers, body):
        body = _analyse(program)
        bodies[id(program.launches)] = body
    _check_domain(program.domain)
    _check_placement(program, body)


def _same_types(buffers: Mapping[str, Buffer], body: _Body) -> bool:
    if buffers.keys() != body.types.keys():
        return False
    types = body.types
    return all((b.space, b.dtype, b.shape) == types[b.name] for b in buffers.values())


def _check_domain(domain: Domain) -> None:
    for symbol in SYMBOLS:
        if not 1 <= domain.bind(symbol) <= _LARGEST:
            raise _Fault(f"domain: expected at least 1 {symbol}, found {domain.bind(symbol)}")


def _analyse(program: Program) -> _Body:
    for name, buffer in program.buffers.items():
        _check_buffer(name, buffer)
    if not any(b.space is Space.OUTPUT for b in program.buffers.values()):
        raise _Fault("expected an output buffer, found none")
    written: dict[str, int] = {}
    last_read: dict[str, int] = {}
    stored: set[Attr] = set()
    in_place: dict[int, str | None] = {}
    for index, launch in enumerate(program.launches):
        try:
            in_place[index] = _check_launch(launch, program.buffers, written, stored)
        except _Fault as fault:
            raise _Fault(f"launch {index} ({launch.op}): {fault}") from None
        last_read.update(dict.fromkeys(launch.inputs, index))
        written.update(dict.fromkeys(launch.outputs, index))
    _check_used(program.buffers, written, last_read)
    types = {b.name: (b.space, b.dtype, b.shape) for b in program.buffers.values()}
    overlaps = tuple(_overlaps(program, last_read, in_place))
    return _Body(program.launches, types, overlaps)


def _check_buffer(name: str, buffer: Buffer) -> None:
    if buffer.name != name:
        raise _Fault(f"buffer {name}: expected its own name, found {buffer.name}")
    sized = buffer.shape or buffer.space is Space.STATE
    if not sized or not all(_is_dim(dim) for dim in buffer.shape):
        found = list(buffer.shape)
        raise _Fault(f"buffer {name}: expected sizes of 1 or more, or symbols, found {found}")
    if buffer.space is Space.INPUT and (buffer.dtype, buffer.shape) != ("i32", INPUTS.get(name)):
        raise _Fault(f"buffer {name}: no such input, or not i32 {list(INPUTS.get(name, ()))}")
    if (buffer.space is Space.STATE) != (name == STATE):
        raise _Fault(f"buffer {name}: expected the one state buffer to be {STATE}")
    if (buffer.offset is not None) != (buffer.space in PLACED):
        raise _Fault(f"buffer {name}: an offset belongs to temp and output buffers alone")


def _is_dim(dim: Dim) -> bool:
    if isinstance(dim, str):
        return dim in SYMBOLS
    return 1 <= dim <= _LARGEST


def _check_launch(
    launch: Launch,
    buffers: Mapping[str, Buffer],
    written: Mapping[str, int],
    stored: set[Attr],
) -> str | None:
    """Check one launch. Returns the input that its output may overwrite, if there is one."""
    signature = _signature(launch)
    for names, operands in (
        (launch.inputs, signature.inputs),
        (launch.outputs, signature.outputs),
    ):
        if len(names) != len(operands):
            roles = ", ".join(operand.role for operand in operands)
            raise _Fault(f"expected operands {roles}, found {', '.join(names)}")
    rows = _rows(launch, signature, buffers)
    for name, operand in zip(launch.inputs, signature.inputs, strict=True):
        buffer = _check_operand(name, operand, buffers, rows)
        if buffer.space in PLACED and name not in written:
            raise _Fault(f"{operand.role}: {name} is read before it is written")
    for name, operand in zip(launch.outputs, signature.outputs, strict=True):
        _check_operand(name, operand, buffers, rows)
        if name in written:
            raise _Fault(f"{operand.role}: {name} is written a second time")
    _check_cache_order(launch, stored)
    return None if signature.in_place is None else launch.inputs[signature.in_place]


def _signature(launch: Launch) -> Signature:
    spec = OPS.get(launch.op)
    if spec is None:
        raise _Fault(f"expected one of {', '.join(OPS)}")
    found, wanted = set(launch.attrs) - set(spec.optional_attrs), set(spec.attrs)
    if found != wanted:
        missing, extra = sorted(wanted - found), sorted(found - wanted)
        raise _Fault(f"attributes: missing {missing}, not known {extra}")
    for name, value in launch.attrs.items():
        _check_attribute(name, value)
    fault = relations(launch)
    if fault is not None:
        raise _Fault(fault)
    return SIGNATURES[launch.op](launch.attrs)


def _check_attribute(name: str, value: Attr) -> None:
    kind = ATTRIBUTES[name]
    if isinstance(kind, tuple):
        if value not in kind or not isinstance(value, str):
            raise _Fault(f"{name}: expected one of {', '.join(kind)}, found {value!a}")
        return
    if type(value) is not kind:
        raise _Fault(f"{name}: expected {kind.__name__}, found {value!a}")
    if isinstance(value, bool | str):
        return
    smallest = 0 if name == "layer" else 1 if kind is int else 0.0
    if not (math.isfinite(value) and value >= smallest and value <= _LARGEST):
        raise _Fault(f"{name}: expected a number of at least {smallest}, found {value}")
    if kind is float and value == 0:
        raise _Fault(f"{name}: expected more than 0")


def _rows(launch: Launch, signature: Signature, buffers: Mapping[str, Buffer]) -> str:
    """Return the row symbol of the launch, as its first row operand has it."""
    operands = zip(
        (*launch.inputs, *launch.outputs), (*signature.inputs, *signature.outputs), strict=True
    )
    for name, operand in operands:
        buffer = buffers.get(name)
        symbol = None if buffer is None else row_symbol(operand, buffer.shape)
        if symbol is not None:
            return symbol
    return "tokens"


def _check_operand(name: str, operand: Operand, buffers: Mapping[str, Buffer], rows: str) -> Buffer:
    buffer = buffers.get(name)
    if buffer is None:
        raise _Fault(f"{operand.role}: no buffer is named {name}")
    if operand.name is not None and name != operand.name:
        raise _Fault(f"{operand.role}: expected the buffer {operand.name}, found {name}")
    if buffer.space not in operand.spaces or buffer.dtype != operand.dtype:
        spaces = " or ".join(sorted(operand.spaces))
        raise _Fault(
            f"{operand.role}: expected {spaces} {operand.dtype}, "
            f"found {name} {buffer.space} {buffer.dtype}"
        )
    if not fits(operand, buffer.shape, rows):
        wanted = [rows if dim == "rows" else dim for dim in operand.shape or ()]
        raise _Fault(f"{operand.role}: expected {wanted}, found {name} {list(buffer.shape)}")
    return buffer


def _check_cache_order(launch: Launch, stored: set[Attr]) -> None:
    """Each layer's keys and values are stored once, before attention reads them."""
    layer = launch.attrs.get("layer")
    if launch.op == "rope_store_kv":
        if layer in stored:
            raise _Fault(f"layer {layer} is stored a second time")
        stored.add(launch.attrs["layer"])
    elif launch.op == "paged_attention" and layer not in stored:
        raise _Fault(f"layer {layer} is read before its keys and values are stored")


def _check_used(
    buffers: Mapping[str, Buffer], written: Mapping[str, int], last_read: Mapping[str, int]
) -> None:
    for name, buffer in buffers.items():
        if buffer.space in PLACED and name not in written:
            raise _Fault(f"buffer {name} is never written")
        if buffer.space in (Space.TEMP, Space.WEIGHT) and name not in last_read:
            raise _Fault(f"buffer {name} is never read")


def _overlaps(
    program: Program, last_read: Mapping[str, int], in_place: Mapping[int, str | None]
) -> Iterable[Overlap]:
    """Yield each pair of arena buffers that are alive in the launch that writes the later one."""
    buffers = program.buffers
    end = len(program.launches)
    alive: dict[str, int] = {}
    for index, launch in enumerate(program.launches):
        alive = {name: last for name, last in alive.items() if last >= index}
        for position, name in enumerate(launch.outputs):
            for other, last in alive.items():
                sole = other == in_place[index] and launch.inputs.count(other) == 1
                yield Overlap(other, name, index, sole and last == index and position == 0)
            output = buffers[name].space is Space.OUTPUT
            alive[name] = end if output else last_read[name]


def _check_placement(program: Program, body: _Body) -> None:
    extents = {
        buffer.name: _extent(buffer, program)
        for buffer in program.buffers.values()
        if buffer.space in PLACED
    }
    for overlap in body.overlaps:
        start, end = extents[overlap.first]
        other_start, other_end = extents[overlap.second]
        if start >= other_end or other_start >= end:
            continue
        if overlap.in_place and (start, end) == (other_start, other_end):
            continue
        raise _Fault(
            f"launch {overlap.at}: {overlap.second} [{other_start}, {other_end}) would overwrite "
            f"{overlap.first} [{start}, {end}), which is still needed"
        )


def _extent(buffer: Buffer, program: Program) -> tuple[int, int]:
    """Return the bytes of the arena that a buffer takes at capacity: start and end."""
    size = buffer_bytes(buffer, program.domain)
    start = buffer.offset
    if start is None or start < 0 or start % ALIGNMENT or start + size > program.arena_bytes:
        raise _Fault(
            f"buffer {buffer.name}: expected {size} bytes at a multiple of {ALIGNMENT} within an "
            f"arena of {program.arena_bytes}, found offset {start}"
        )
    return start, start + size


def buffer_bytes(buffer: Buffer, domain: Domain) -> int:
    """Return a buffer's bytes at a domain's capacity."""
    size = ITEM_BYTES[buffer.dtype]
    for dim in buffer.shape:
        size *= dim if isinstance(dim, int) else domain.bind(dim)
    return size
