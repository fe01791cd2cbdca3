"""Listing of a program that a person can read."""

from collections.abc import Iterator

from engine.ir.program import Attr, Buffer, Program, Space


def format_program(program: Program) -> str:
    """Return the program as text: its domain, its buffers by space, then one line per launch."""
    return "\n".join(_lines(program)) + "\n"


def _lines(program: Program) -> Iterator[str]:
    domain = program.domain
    yield (
        f"program {program.name} (tokens <= {domain.tokens}, seqs <= {domain.seqs}, "
        f"logits <= {domain.logits}), arena {program.arena_bytes} bytes"
    )
    for space in Space:
        buffers = [buffer for buffer in program.buffers.values() if buffer.space is space]
        if buffers and space is not Space.TEMP:
            yield f"  {space}"
            yield from (f"    {_typed(buffer)}" for buffer in buffers)
    yield "  launches"
    width = len(str(len(program.launches)))
    for index, launch in enumerate(program.launches):
        outputs = ", ".join(_typed(program.buffers[name]) for name in launch.outputs)
        attrs = " ".join(f"{name}={_attr(value)}" for name, value in launch.attrs.items())
        call = f"{launch.op}({', '.join(launch.inputs)})"
        yield f"    {index:>{width}}  {outputs} = {call} [{attrs}] <{launch.kernel}>"


def _typed(buffer: Buffer) -> str:
    shape = ", ".join(str(dim) for dim in buffer.shape)
    place = "" if buffer.offset is None else f" @{buffer.offset}"
    return f"{buffer.name}: {buffer.dtype}[{shape}]{place}"


def _attr(value: Attr) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
