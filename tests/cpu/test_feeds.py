"""Rows that a launch hands to the next linear in converted form: the bits of floats in between."""

import flare_cpu
import numpy as np
import pytest

from engine.device.cpu.lower import NativeLaunch
from engine.kernels.layouts import pack_q4, pack_q8
from tests.support.native import ISAS, aligned

WIDTH, FFN, MOST = 64, 96, 72
PLACES = {name: i * MOST * FFN * 4 for i, name in enumerate(("x", "h", "g", "y"))}
X, H, G, Y = (("arena", PLACES[name]) for name in ("x", "h", "g", "y"))
BATCHES = [(1, 0), (1, 1), (2, 0), (2, 2), (15, 3), (16, 0), (17, 1), (40, 9), (72, 16), (33, 33)]
CLASSES = [
    ("bf16_t32", "bf16_g32"),
    ("bf16_t32", "bf16_t32"),
    ("bf16_t32", "int8_g32"),
    ("bf16_t32", "int12_g32"),
    ("int8_g32", "bf16_g32"),
]


def linear(
    x: tuple[str, int], weight: int, y: tuple[str, int], n: int, k: int, classes: tuple[str, str],
    residual: tuple[str, int] | None = None, layout: str = "q4p16",
) -> NativeLaunch:  # fmt: skip
    return (
        "linear",
        [x, ("weight", weight), *([residual] if residual else [])],
        [y],
        {
            "n": n,
            "k": k,
            "layout": layout,
            "activation": "none" if residual else "silu_mul",
            "bias": 0,
            "residual": int(residual is not None),
            "prompt_class": classes[0],
            "generated_class": classes[1],
            "rows": "tokens",
        },
    )


def block(classes: tuple[str, str]) -> list[NativeLaunch]:
    """Norm, gate and up, down: a feed-forward block."""
    norm: NativeLaunch = (
        "rms_norm", [X, ("weight", 0)], [H], {"width": WIDTH, "eps": 1e-5, "rows": "tokens"},
    )  # fmt: skip
    down = linear(G, 2, Y, WIDTH, FFN, classes, residual=X, layout="q8p16")
    return [norm, linear(H, 1, G, 2 * FFN, WIDTH, classes), down]


def weights() -> list[np.ndarray]:
    rng = np.random.default_rng(4)
    codes = rng.integers(0, 16, (2 * FFN, WIDTH), np.uint8)
    shape = 2 * FFN, WIDTH // 32
    scales = rng.uniform(0.02, 0.1, shape).astype(np.float16)
    minima = rng.uniform(-0.8, 0, shape).astype(np.float16)
    down = rng.integers(-127, 128, (WIDTH, FFN), np.int8)
    factors = rng.uniform(0.001, 0.01, (WIDTH, FFN // 32)).astype(np.float16)
    norm = rng.uniform(0.5, 1.5, WIDTH).astype(np.float32)
    return [aligned(norm), aligned(pack_q4(codes, scales, minima)), aligned(pack_q8(down, factors))]


def replay(
    isa: str, programs: list[list[NativeLaunch]], batch: tuple[int, int], threads: int = 2
) -> tuple[np.ndarray, flare_cpu.Context]:
    """Run the programs one after the other on the same random rows; returns y and the context."""
    rows, generated = batch
    pool = flare_cpu.ThreadPool(threads)
    size = 4 * MOST * FFN * 4
    context = flare_cpu.Context(pool, isa, size, MOST, MOST, 1, 2, 1, 1, 64, 64, 2)
    arena = context.arena.view(np.float32)
    x = np.random.default_rng(7).standard_normal(rows * WIDTH).astype(np.float32)
    arena[:] = np.nan
    arena[: x.size] = x
    context.seg_starts[: generated + 1] = np.arange(generated + 1)
    seqs = generated + (rows > generated)
    context.seg_starts[seqs] = rows
    held = weights()
    for program in programs:
        executable = flare_cpu.Executable(context, (MOST, MOST, 1), program, held)
        executable.replay(rows, seqs, generated, generated, 0, 0)
    start = PLACES["y"] // 4
    return arena[start : start + rows * WIDTH].copy(), context


def floats_at(context: flare_cpu.Context, name: str) -> np.ndarray:
    start = PLACES[name] // 4
    return context.arena.view(np.float32)[start : start + MOST * FFN]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("classes", CLASSES)
@pytest.mark.parametrize("batch", BATCHES)
def test_a_block_has_the_bits_of_its_launches(
    isa: str, classes: tuple[str, str], batch: tuple[int, int]
) -> None:
    launches = block(classes)
    apart, _ = replay(isa, [[launch] for launch in launches], batch)
    whole, _ = replay(isa, [launches], batch)
    assert np.isfinite(apart).all()
    np.testing.assert_array_equal(whole.view(np.uint32), apart.view(np.uint32))


def test_floats_that_nobody_else_reads_are_not_written() -> None:
    launches = block(CLASSES[0])
    _, context = replay(ISAS[-1], [launches], (40, 0))
    assert np.isnan(floats_at(context, "h")).all()
    if ISAS[-1] == "amx":
        assert np.isnan(floats_at(context, "g")).all()


def test_floats_that_another_launch_reads_are_written() -> None:
    """The normed rows are read once more, as the residual of the last launch."""
    norm, gate, down = block(CLASSES[0])
    inputs = [*down[1][:-1], H]
    launches = [norm, gate, (down[0], inputs, down[2], down[3])]
    apart, _ = replay(ISAS[-1], [[launch] for launch in launches], (40, 8))
    whole, context = replay(ISAS[-1], [launches], (40, 8))
    assert not np.isnan(floats_at(context, "h")).all()
    np.testing.assert_array_equal(whole, apart)
