"""The memory plan: live buffers never share bytes, residuals are written in place."""

from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.export.memory_plan import plan_memory
from engine.ir.program import Attr, Buffer, Domain, Launch, Program, Space
from engine.ir.verify import ALIGNMENT, buffer_bytes

WIDTHS = (1, 3, 16, 40, 64)


def program_of(launches: list[tuple[tuple[str, ...], str, int, bool]]) -> Program:
    """(inputs, output, width, residual) per launch; the last output is the program's."""
    buffers: dict[str, Buffer] = {}
    recorded = []
    for index, (inputs, output, width, residual) in enumerate(launches):
        space = Space.OUTPUT if index == len(launches) - 1 else Space.TEMP
        buffers[output] = Buffer(output, space, "f32", ("tokens", width))
        attrs: Mapping[str, Attr] = {"residual": residual}
        recorded.append(Launch("linear", "k", inputs, (output,), attrs))
    return Program("body", Domain(1, 1, 1), buffers, tuple(recorded))


@st.composite
def programs(draw: st.DrawFn) -> Program:
    count = draw(st.integers(1, 24))
    widths: list[int] = []
    launches = []
    for index in range(count):
        inputs = draw(st.lists(st.integers(0, index - 1), max_size=3)) if index else []
        residual = bool(inputs) and draw(st.booleans())
        width = widths[inputs[-1]] if residual else draw(st.sampled_from(WIDTHS))
        widths.append(width)
        launches.append((tuple(f"b{i}" for i in inputs), f"b{index}", width, residual))
    return program_of(launches)


def lifetimes(program: Program) -> dict[str, tuple[int, int]]:
    """Name -> launches that write it first and read it last, found the slow way."""
    found = {}
    for name, buffer in program.buffers.items():
        written = next(i for i, e in enumerate(program.launches) if name in e.outputs)
        reads = [i for i, e in enumerate(program.launches) if name in e.inputs]
        last = len(program.launches) if buffer.space is Space.OUTPUT else max([written, *reads])
        found[name] = (written, last)
    return found


@settings(max_examples=300, deadline=None)
@given(program=programs(), tokens=st.integers(1, 70))
def test_live_buffers_never_overlap(program: Program, tokens: int) -> None:
    planned = plan_memory(program, Domain(tokens, 1, 1), "planned")
    alive = lifetimes(planned)
    extents = {}
    for name, buffer in planned.buffers.items():
        assert buffer.offset is not None and buffer.offset % ALIGNMENT == 0
        extents[name] = (buffer.offset, buffer.offset + buffer_bytes(buffer, planned.domain))
        assert extents[name][1] <= planned.arena_bytes
    names = list(extents)
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            if extents[a][0] >= extents[b][1] or extents[b][0] >= extents[a][1]:
                continue
            first, second = sorted((a, b), key=lambda name: alive[name][0])
            launch = planned.launches[alive[second][0]]
            handed_over = (
                launch.attrs["residual"] is True
                and launch.inputs.count(first) == 1
                and launch.inputs[-1] == first
                and alive[first][1] == alive[second][0]
                and extents[first] == extents[second]
            )
            assert alive[first][1] < alive[second][0] or handed_over, (first, second)


def test_a_dying_residual_is_overwritten_and_a_living_one_is_not() -> None:
    dying = [((), "x", 16, False), (("x",), "h", 64, False), (("h", "x"), "y", 16, True)]
    planned = plan_memory(program_of(dying), Domain(4, 1, 1), "p").buffers
    assert planned["x"].offset == planned["y"].offset
    living = [*dying, (("x", "y"), "z", 16, False)]
    planned = plan_memory(program_of(living), Domain(4, 1, 1), "p").buffers
    assert planned["x"].offset != planned["y"].offset


def test_a_residual_that_is_multiplied_too_is_not_overwritten() -> None:
    launches = [((), "x", 16, False), (("x", "x"), "y", 16, True)]
    planned = plan_memory(program_of(launches), Domain(4, 1, 1), "p").buffers
    assert planned["x"].offset != planned["y"].offset


def test_the_arena_is_no_larger_than_what_lives_at_once() -> None:
    chain = [((), "b0", 16, False)]
    chain += [((f"b{i}",), f"b{i + 1}", 16, False) for i in range(20)]
    planned = plan_memory(program_of(chain), Domain(4, 1, 1), "p")
    assert planned.arena_bytes == 2 * 4 * 16 * 4
