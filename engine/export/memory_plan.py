"""The memory plan: arena offsets for a program's temporaries, from their lifetimes."""

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from engine.ir.program import Buffer, Domain, Launch, Program, Space
from engine.ir.verify import ALIGNMENT, buffer_bytes


class _Region(Struct):
    """Buffers that share one place, alive from launch ``start`` to ``end``, both included."""

    names: list[str]
    size: int
    start: int
    end: int
    offset: int = 0

    def meets(self, other: "_Region") -> bool:
        return self.start <= other.end and other.start <= self.end


def plan_memory(program: Program, domain: Domain, name: str) -> Program:
    """Return the program for a domain, every temporary and output placed in the arena.

    A buffer is alive from the launch that writes it to the last that reads it (an output: to the
    end). A linear writes over its residual when the residual is read there for the last time.
    Regions are placed largest first, each at the lowest free offset; offsets are multiples of 64.
    """
    regions = _regions(program, domain)
    _place(regions)
    offsets = {name: region.offset for region in regions for name in region.names}
    buffers = {
        buffer.name: replace(buffer, offset=offsets.get(buffer.name))
        for buffer in program.buffers.values()
    }
    arena = max((region.offset + _align(region.size) for region in regions), default=0)
    return Program(name, domain, buffers, program.launches, arena)


def _regions(program: Program, domain: Domain) -> list[_Region]:
    last_read = {name: i for i, launch in enumerate(program.launches) for name in launch.inputs}
    regions: dict[str, _Region] = {}
    for index, launch in enumerate(program.launches):
        for output in launch.outputs:
            buffer = program.buffers[output]
            size = buffer_bytes(buffer, domain)
            end = _end(buffer, index, last_read, len(program.launches))
            host = regions.get(_residual(launch) or "")
            if host is not None and host.end == index and host.size == size:
                host.names.append(output)
                host.end = end
                regions[output] = host
            else:
                regions[output] = _Region([output], size, index, end)
    return list({id(region): region for region in regions.values()}.values())


def _end(buffer: Buffer, written: int, last_read: dict[str, int], launches: int) -> int:
    if buffer.space is Space.OUTPUT:
        return launches
    return last_read.get(buffer.name, written)


def _residual(launch: Launch) -> str | None:
    """The operand that this launch may overwrite: its residual, unless it is another input too."""
    last = launch.inputs[-1:]
    if launch.attrs.get("residual") is not True or launch.inputs.count(last[0]) > 1:
        return None
    return last[0]


def _place(regions: Iterable[_Region]) -> None:
    placed: list[_Region] = []
    for region in sorted(regions, key=lambda r: (-r.size, r.start)):
        offset = 0
        for other in sorted(filter(region.meets, placed), key=lambda r: r.offset):
            if offset + region.size <= other.offset:
                break
            offset = max(offset, other.offset + _align(other.size))
        region.offset = offset
        placed.append(region)


def _align(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
