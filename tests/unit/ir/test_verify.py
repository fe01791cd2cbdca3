"""The IR verifier: a valid program passes, and each broken rule is named."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from engine.ir.print import format_program
from engine.ir.program import Attr, Buffer, Domain, Launch, Program, Space
from engine.ir.verify import ProgramInvalidError, verify_programs
from tests.support.cores import CoreSpec, Recorder, place, record, weights

SPEC = CoreSpec(layers=1)
DOMAIN = Domain(4, 2, 3)

Change = Callable[[Program], Program]


def program() -> Program:
    return place("p", DOMAIN, record(SPEC, weights(SPEC)))


def launch_index(op: str, number: int = 0) -> int:
    found = [i for i, launch in enumerate(program().launches) if launch.op == op]
    return found[number]


def with_launch(op: str, number: int = 0, /, **changes: object) -> Change:
    def change(p: Program) -> Program:
        launches = list(p.launches)
        index = launch_index(op, number)
        launches[index] = replace(launches[index], **changes)
        return replace(p, launches=tuple(launches))

    return change


def with_attr(op: str, name: str, value: Attr | None, number: int = 0) -> Change:
    attrs = dict(program().launches[launch_index(op, number)].attrs)
    if value is None:
        del attrs[name]
    else:
        attrs[name] = value
    return with_launch(op, number, attrs=attrs)


def with_buffer(name: str, /, **changes: object) -> Change:
    def change(p: Program) -> Program:
        return replace(p, buffers={**p.buffers, name: replace(p.buffers[name], **changes)})

    return change


def without_buffer(name: str) -> Change:
    return lambda p: replace(p, buffers={k: v for k, v in p.buffers.items() if k != name})


def with_extra(buffer: Buffer) -> Change:
    return lambda p: replace(p, buffers={**p.buffers, buffer.name: buffer})


def swapped(first: int, second: int) -> Change:
    def change(p: Program) -> Program:
        launches = list(p.launches)
        launches[first], launches[second] = launches[second], launches[first]
        return replace(p, launches=tuple(launches))

    return change


def test_a_recorded_program_passes() -> None:
    verify_programs([program()])


CASES: dict[str, tuple[Change, str]] = {
    "unknown op": (with_launch("embed", op="softmax"), r"launch 0 \(softmax\): expected one of"),
    "missing attribute": (with_attr("rms_norm", "eps", None), r"missing \['eps'\]"),
    "extra attribute": (with_attr("rms_norm", "beta", 1.0), r"not known \['beta'\]"),
    "attribute type": (with_attr("rms_norm", "width", 64.0), "width: expected int, found 64.0"),
    "boolean as integer": (with_attr("rms_norm", "width", True), "width: expected int"),
    "integer as boolean": (with_attr("linear", "bias", 0), "bias: expected bool, found 0"),
    "negative layer": (with_attr("paged_attention", "layer", -1), "layer: expected a number"),
    "zero scale": (with_attr("paged_attention", "scale", 0.0), "scale: expected more than 0"),
    "infinite eps": (with_attr("rms_norm", "eps", float("inf")), "eps: expected a number"),
    "nan eps": (with_attr("rms_norm", "eps", float("nan")), "eps: expected a number"),
    "unknown layout": (with_attr("embed", "layout", "q3p16"), "layout: expected one of q4p16"),
    "unknown activation": (with_attr("linear", "activation", "relu"), "activation: expected one"),
    "unknown class": (with_attr("linear", "prompt_class", "fp8"), "prompt_class: expected one of"),
    "class needs quantised": (
        with_attr("linear", "generated_class", "int8_g32"),
        "generated_class: no kernel computes int8_g32 on bf16p16",
    ),
    "prompt class needs quantised": (
        with_attr("linear", "prompt_class", "bf16_g32"),
        "prompt_class: no kernel computes bf16_g32 on bf16p16",
    ),
    "heads": (with_attr("paged_attention", "kv_heads", 3), "4 heads are no multiple of 3"),
    "odd head_dim": (with_attr("paged_attention", "head_dim", 17), "head_dim 17 is odd"),
    "operand count": (with_launch("rms_norm", inputs=("t0",)), "expected operands x, weight"),
    "missing buffer": (without_buffer("norm"), "no buffer is named norm"),
    "wrong width": (with_attr("rms_norm", "width", 32), r"x: expected \['tokens', 32\]"),
    "wrong dtype": (with_buffer("norm", dtype="u8"), "weight: expected weight f32, found norm"),
    "wrong space": (
        with_launch("rms_norm", inputs=("t0", "t0")),
        "weight: expected weight f32, found t0 temp f32",
    ),
    "wrong host input": (
        with_launch("embed", inputs=("positions", "embed")),
        "token_ids: expected the buffer token_ids, found positions",
    ),
    "symbolic weight": (with_buffer("norm", shape=("tokens",)), "weight: expected"),
    "read before written": (swapped(1, 2), "x: t1 is read before it is written"),
    "written twice": (with_launch("rms_norm", 1, outputs=("t1",)), "y: t1 is written a second"),
    "attention before store": (
        with_attr("paged_attention", "layer", 1),
        "layer 1 is read before its keys",
    ),
    "rows of two symbols": (with_buffer("t1", shape=("logits", 64)), "y: expected"),
    "name of another": (with_buffer("t1", name="t2"), "buffer t1: expected its own name"),
    "unknown symbol": (with_buffer("t1", shape=("batch", 64)), "buffer t1: expected sizes"),
    "zero size": (with_buffer("norm", shape=(0,)), "buffer norm: expected sizes"),
    "no shape": (with_buffer("norm", shape=()), "buffer norm: expected sizes"),
    "unknown input": (
        with_extra(Buffer("mask", Space.INPUT, "i32", ("tokens",))),
        "buffer mask: no such input",
    ),
    "second state": (
        with_extra(Buffer("state2", Space.STATE, "u8", (1,))),
        "the one state buffer to be kv_cache",
    ),
    "weight with offset": (with_buffer("norm", offset=0), "buffer norm: an offset belongs"),
    "temp without offset": (with_buffer("t1", offset=None), "buffer t1: an offset belongs"),
    "offset not aligned": (with_buffer("t1", offset=1032), "at a multiple of 64"),
    "negative offset": (with_buffer("t1", offset=-64), "found offset -64"),
    "outside the arena": (lambda p: replace(p, arena_bytes=64), "within an arena of 64"),
    "unused weight": (
        with_extra(Buffer("spare", Space.WEIGHT, "u8", (64,))),
        "buffer spare is never read",
    ),
    "unwritten temp": (
        with_extra(Buffer("spare", Space.TEMP, "f32", (64,), 0)),
        "buffer spare is never written",
    ),
    "no output": (with_buffer("logits", space=Space.TEMP), "expected an output buffer"),
    "empty domain": (lambda p: replace(p, domain=Domain(4, 0, 1)), "at least 1 seqs, found 0"),
    "huge domain": (lambda p: replace(p, domain=Domain(2**40, 1, 1)), "at least 1 tokens"),
}


@pytest.mark.parametrize("name", CASES)
def test_each_broken_rule_is_named(name: str) -> None:
    change, message = CASES[name]
    with pytest.raises(ProgramInvalidError, match=message) as caught:
        verify_programs([change(program())])
    assert str(caught.value).startswith("program p: ")


def test_a_dead_result_is_refused() -> None:
    p = program()
    spare = Buffer("spare", Space.TEMP, "f32", ("tokens", 64), p.arena_bytes)
    dead = Launch("rms_norm", "k", ("t0", "layers.0.norm1"), ("spare",), {"width": 64, "eps": 1e-5})
    changed = replace(
        p,
        buffers={**p.buffers, "spare": spare},
        launches=(p.launches[0], dead, *p.launches[1:]),
        arena_bytes=p.arena_bytes + 4 * 64 * 4,
    )
    with pytest.raises(ProgramInvalidError, match="buffer spare is never read"):
        verify_programs([changed])


def test_a_layer_is_stored_once() -> None:
    recorder = record(SPEC, weights(SPEC))
    store = next(e for e in recorder.launches if e.op == "rope_store_kv")
    recorder.buffers["again"] = replace(recorder.buffers[store.outputs[0]], name="again")
    index = recorder.launches.index(store)
    recorder.launches.insert(index + 1, replace(store, outputs=("again",)))
    with pytest.raises(ProgramInvalidError, match="layer 0 is stored a second time"):
        verify_programs([place("p", DOMAIN, recorder)])


def at_offset(p: Program, name: str, other: str, shift: int = 0) -> Program:
    offset = p.buffers[other].offset
    assert offset is not None
    return with_buffer(name, offset=offset + shift)(p)


def test_dead_buffers_may_share_their_place() -> None:
    p = program()
    # t2 (qkv) reads t1 and t3 (q) reads t2: t3 may lie where t1 was.
    verify_programs([at_offset(p, "t3", "t1")])


def test_live_buffers_may_not_overlap() -> None:
    p = program()
    with pytest.raises(ProgramInvalidError, match=r"launch 1: t1 .* would overwrite t0"):
        verify_programs([at_offset(p, "t1", "t0")])
    # t0 is the residual of launch 5: alive until then.
    with pytest.raises(ProgramInvalidError, match=r"t3 .* would overwrite t0 .* still needed"):
        verify_programs([at_offset(p, "t3", "t0")])
    with pytest.raises(ProgramInvalidError, match="would overwrite t1"):
        verify_programs([at_offset(p, "t2", "t1", 64)])


def test_a_residual_that_dies_may_be_overwritten_exactly() -> None:
    p = program()
    index = launch_index("linear", 1)
    launch = p.launches[index]
    residual, y = launch.inputs[2], launch.outputs[0]
    verify_programs([at_offset(p, y, residual)])
    with pytest.raises(ProgramInvalidError, match=f"{y} .* would overwrite {residual}"):
        verify_programs([at_offset(p, y, residual, 64)])
    with pytest.raises(ProgramInvalidError, match="would overwrite"):
        verify_programs([at_offset(p, y, launch.inputs[0])])


def test_a_residual_that_is_also_the_input_may_not_be_overwritten() -> None:
    stored = weights(SPEC)
    r = Recorder(SPEC, stored)
    x = r.launch(
        "embed", ("token_ids", r.weight("embed")), ("tokens", 64),
        vocab=90, width=64, layout=SPEC.layout,
    )  # fmt: skip
    y = r.linear(x, "layers.0.o", "tokens", residual=x)
    rows = r.launch("gather_rows", (y, "logit_rows"), ("logits", 64), width=64)
    r.linear(rows, "embed", "logits")
    p = place("p", DOMAIN, r)
    verify_programs([p])
    with pytest.raises(ProgramInvalidError, match=f"{y} .* would overwrite {x}"):
        verify_programs([at_offset(p, y, x)])


def test_an_output_stays_to_the_end() -> None:
    stored = weights(SPEC)
    r = record(SPEC, stored)
    tail = r.launch("rms_norm", ("t0", r.weight("norm")), ("tokens", 64), width=64, eps=1e-5)
    r.buffers["y"] = replace(r.buffers[tail], name="y", space=Space.OUTPUT)
    r.launches[-1] = replace(r.launches[-1], outputs=("y",))
    del r.buffers[tail]
    p = place("p", DOMAIN, r)
    verify_programs([p])
    with pytest.raises(ProgramInvalidError, match=r"y .* would overwrite logits"):
        verify_programs([at_offset(p, "y", "logits")])


def test_programs_with_one_body_are_each_checked_for_their_places() -> None:
    first = program()
    second = replace(first, name="q")
    verify_programs([first, second])
    with pytest.raises(ProgramInvalidError, match=r"program q: launch 1: t1"):
        verify_programs([first, at_offset(second, "t1", "t0")])
    with pytest.raises(ProgramInvalidError, match="program q: launch"):
        verify_programs([first, with_buffer("norm", dtype="u8")(second)])


def test_the_listing_shows_every_launch_and_buffer() -> None:
    p = program()
    text = format_program(p)
    assert text.startswith("program p (tokens <= 4, seqs <= 2, logits <= 3), arena")
    for name in p.buffers:
        assert name in text
    listed = [line for line in text.splitlines() if line.endswith(">")]
    assert len(listed) == len(p.launches)
    for line, launch in zip(listed, p.launches, strict=True):
        assert f"= {launch.op}({', '.join(launch.inputs)})" in line
        assert f"<{launch.kernel}>" in line
