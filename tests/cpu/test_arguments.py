"""Hostile arguments of the native extension: a ValueError that names the fault, never a crash."""

from collections.abc import Callable
from typing import Any

import flare_cpu
import numpy as np
import pytest

from engine.device.cpu.lower import NativeLaunch
from engine.kernels.layouts import pack_q8
from tests.support.native import ISAS, Attention, Rows, Shape, aligned

SHAPE = Shape(heads=2, kv_heads=1, head_dim=32)
SIZES: dict[str, Any] = {
    "isa": ISAS[-1],
    "arena_bytes": 4096,
    "max_tokens": 8,
    "max_seqs": 4,
    "max_logits": 8,
    "max_blocks": 4,
    "layers": 1,
    "kv_heads": 1,
    "head_dim": 32,
    "block_size": 64,
    "num_blocks": 4,
}


def context(**changes: Any) -> flare_cpu.Context:
    return flare_cpu.Context(flare_cpu.ThreadPool(1), **{**SIZES, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"isa": "sse9"}, "unknown instruction set 'sse9'"),
        ({"arena_bytes": -1}, "arena_bytes"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_seqs": 0}, "max_seqs"),
        ({"max_logits": 1 << 40}, "max_logits"),
        ({"max_blocks": 0}, "max_blocks"),
        ({"layers": 0}, "layers"),
        ({"kv_heads": 0}, "kv_heads"),
        ({"head_dim": 33}, "even"),
        ({"head_dim": 258}, "head_dim"),
        ({"block_size": 16}, "block_size must be 64"),
        ({"num_blocks": 1 << 26}, "num_blocks"),
    ],
)
def test_context_sizes(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        context(**changes)


def test_a_cache_larger_than_memory() -> None:
    with pytest.raises(MemoryError):
        context(layers=4096, kv_heads=4096, num_blocks=(1 << 25) - 1)


def missing_isa() -> str | None:
    known = ("avx2", "avx512", "amx", "neon")
    return next((name for name in known if not flare_cpu.features()[name]), None)


def test_an_instruction_set_that_the_processor_lacks_is_refused() -> None:
    name = missing_isa()
    assert name is not None
    with pytest.raises(ValueError, match=f"this processor has no {name}"):
        context(isa=name)


LINEAR: NativeLaunch = (
    "linear",
    [("arena", 0), ("weight", 0)],
    [("arena", 2048)],
    {
        "n": 16,
        "k": 32,
        "layout": "q8p16",
        "activation": "none",
        "bias": 0,
        "residual": 0,
        "prompt_class": "bf16_t32",
        "generated_class": "int8_g32",
        "rows": "tokens",
    },
)


def weight(n: int = 16, k: int = 32) -> np.ndarray:
    return aligned(pack_q8(np.zeros((n, k), np.int8), np.zeros((n, k // 32), np.float16)))


def changed(launch: NativeLaunch, **attributes: Any) -> NativeLaunch:
    op, inputs, outputs, old = launch
    merged = {name: value for name, value in {**old, **attributes}.items() if value is not None}
    return op, inputs, outputs, merged


def placed(launch: NativeLaunch, inputs: list[Any], outputs: list[Any]) -> NativeLaunch:
    return launch[0], inputs, outputs, launch[3]


@pytest.mark.parametrize(
    ("launch", "message"),
    [
        (("matmul", [], [], {}), r"launch 0 \(matmul\): unknown op"),
        (changed(LINEAR, n=0), "n must be 1"),
        (changed(LINEAR, n=None), "needs the attribute 'n'"),
        (changed(LINEAR, n=1.5), "n must be an integer"),
        (changed(LINEAR, window=3), "unknown attribute 'window'"),
        (changed(LINEAR, k=48), "k must be a multiple of 32"),
        (changed(LINEAR, k=64), "weight must have"),
        (changed(LINEAR, layout="q2"), "unknown layout 'q2'"),
        (changed(LINEAR, layout="bf16p16"), "generated_class int8_g32 needs a quantised layout"),
        (
            changed(LINEAR, layout="bf16p16", prompt_class="bf16_g32"),
            "prompt_class bf16_g32 needs a quantised layout",
        ),
        (changed(LINEAR, activation="relu"), "unknown activation 'relu'"),
        (changed(LINEAR, activation="silu_mul"), "n must be a multiple of 32"),
        (changed(LINEAR, prompt_class="fp8"), "unknown prompt_class 'fp8'"),
        (changed(LINEAR, bias=1), "takes 3 inputs"),
        (changed(LINEAR, rows="heads"), "unknown rows 'heads'"),
        (placed(LINEAR, [("arena", 0)], [("arena", 2048)]), "takes 2 inputs"),
        (placed(LINEAR, [("arena", -64), ("weight", 0)], [("arena", 2048)]), "x of"),
        (placed(LINEAR, [("arena", 8), ("weight", 0)], [("arena", 2048)]), "multiple of 64"),
        (placed(LINEAR, [("arena", 1 << 40), ("weight", 0)], [("arena", 2048)]), "x of"),
        (placed(LINEAR, [("arena", 0), ("weight", 0)], [("arena", 4032)]), "y of"),
        (placed(LINEAR, [("arena", 0), ("weight", 1)], [("arena", 2048)]), "one of the 1 weights"),
        (placed(LINEAR, [("arena", 0), ("weight", -1)], [("arena", 2048)]), "one of the 1"),
        (placed(LINEAR, [("arena", 0), ("arena", 64)], [("arena", 2048)]), "one of the 1"),
        (placed(LINEAR, [("arena", 0), ("weight", 0)], [("arena", 512)]), "y overlaps x"),
        (placed(LINEAR, [("disk", 0), ("weight", 0)], [("arena", 512)]), "operand kind 'disk'"),
        (placed(LINEAR, [("arena", "x"), ("weight", 0)], [("arena", 512)]), "operand kind"),
    ],
)
def test_launches(launch: NativeLaunch, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        flare_cpu.Executable(context(), (8, 4, 8), [launch], [weight()])


def test_a_good_launch_is_taken() -> None:
    flare_cpu.Executable(context(), (8, 4, 8), [LINEAR], [weight()])


@pytest.mark.parametrize("domain", [(0, 1, 1), (9, 1, 1), (8, 5, 1), (8, 4, 9), (-1, 1, 1)])
def test_domains(domain: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="the domain's"):
        flare_cpu.Executable(context(), domain, [], [])


def test_weights_must_be_aligned_bytes() -> None:
    raw = np.zeros(weight().size + 65, np.uint8)
    start = -raw.ctypes.data % 64 + 1
    with pytest.raises(ValueError, match="aligned to 64"):
        flare_cpu.Executable(context(), (8, 4, 8), [LINEAR], [raw[start : start + weight().size]])
    with pytest.raises(TypeError):
        flare_cpu.Executable(context(), (8, 4, 8), [LINEAR], [weight().view(np.int8)])  # type: ignore[list-item]


def poke(name: str, index: Any, value: int) -> Callable[[flare_cpu.Context], None]:
    def change(c: flare_cpu.Context) -> None:
        getattr(c, name)[index] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (poke("positions", 3, 4), "positions of segment 0"),
        (poke("positions", 3, -1), r"positions\[3\]"),
        (poke("positions", 3, 1 << 30), r"positions\[3\]"),
        (poke("slots", 2, -1), r"slots\[2\] = -1"),
        (poke("slots", 2, 4 * 64), r"slots\[2\] = 256"),
        (poke("seg_starts", 0, 1), "seg_starts"),
        (poke("seg_starts", 1, 0), "seg_starts"),
        (poke("seg_starts", 2, 7), "seg_starts"),
        (poke("seq_lens", 0, 3), r"seq_lens\[0\]"),
        (poke("seq_lens", 1, 4 * 64 + 1), r"seq_lens\[1\]"),
        (poke("block_tables", (1, 0), 4), r"block_tables\[1\]\[0\] = 4"),
        (poke("block_tables", (0, 0), -1), r"block_tables\[0\]\[0\] = -1"),
    ],
)
def test_inputs_are_checked_before_anything_runs(
    change: Callable[[flare_cpu.Context], None], message: str
) -> None:
    attention = Attention(ISAS[-1], SHAPE, tokens=8, num_blocks=4, max_blocks=4)
    qkv = np.ones((4, SHAPE.qkv), np.float32)
    parts = [Rows(qkv, 0, (0,), True), Rows(qkv, 0, (1,))]
    attention.run(parts)
    attention.fill(parts)
    change(attention.context)
    before = attention.view("y", 8, SHAPE.q).copy()
    attention.view("qkv", 8, SHAPE.qkv)[:] = 5
    with pytest.raises(ValueError, match=message):
        attention.executable.replay(8, 2, 4, 1, 0, 0)
    np.testing.assert_array_equal(attention.view("y", 8, SHAPE.q), before)


@pytest.mark.parametrize(
    "counts",
    [
        (0, 0, 0, 0, 0, 0),
        (9, 2, 4, 1, 0, 0),
        (8, 0, 0, 0, 0, 0),
        (8, 33, 4, 1, 0, 0),
        (8, 2, 9, 1, 0, 0),
        (8, 2, 4, 3, 0, 0),
        (8, 2, 4, 0, 0, 0),
        (8, 2, 8, 1, 0, 0),
        (8, 2, 4, 1, 2, 0),
        (8, 2, 4, 1, 1, 2),
        (-8, 2, 4, 1, 0, 0),
        (1 << 40, 2, 4, 1, 0, 0),
    ],
)
def test_counts(counts: tuple[int, int, int, int, int, int]) -> None:
    attention = Attention(ISAS[-1], SHAPE, tokens=8, num_blocks=4, max_blocks=4)
    qkv = np.ones((4, SHAPE.qkv), np.float32)
    attention.fill([Rows(qkv, 0, (0,), True), Rows(qkv, 0, (1,))])
    with pytest.raises(ValueError, match="must"):
        attention.executable.replay(*counts)


def test_token_ids_and_logit_rows() -> None:
    ctx = context()
    launches: list[NativeLaunch] = [
        (
            "embed",
            [("input", "token_ids"), ("weight", 0)],
            [("arena", 0)],
            {"vocab": 16, "width": 32, "layout": "q8p16"},
        ),
        (
            "gather_rows",
            [("arena", 0), ("input", "logit_rows")],
            [("arena", 1024)],
            {"width": 32},
        ),
    ]
    executable = flare_cpu.Executable(ctx, (8, 4, 8), launches, [weight()])
    ctx.seg_starts[:3] = [0, 1, 3]
    for token in (16, -1):
        ctx.token_ids[:3] = [0, token, 0]
        with pytest.raises(ValueError, match=r"token_ids\[1\]"):
            executable.replay(3, 2, 1, 1, 0, 0)
    ctx.token_ids[:3] = 0
    for rows in ([1, 2], [0, 0], [0, 3]):
        ctx.logit_rows[:2] = rows
        with pytest.raises(ValueError, match="logit_rows"):
            executable.replay(3, 2, 1, 1, 2, 1)
    ctx.logit_rows[:2] = [0, 2]
    executable.replay(3, 2, 1, 1, 2, 1)
