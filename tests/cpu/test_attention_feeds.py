"""Attention's prompt rows, handed to the output projection in converted form: the same bits."""

import flare_cpu
import numpy as np
import pytest

from engine.device.cpu.lower import NativeLaunch
from engine.kernels.layouts import pack_q8
from tests.support.native import F32, ISAS, Attention, Rows, Shape, aligned, identity_rope

TOKENS, WIDTH = 96, 48
SHAPES = [Shape(heads=9, kv_heads=3), Shape(4, 4, 32), Shape(2, 1, 256), Shape(2, 1, 80)]
CLASSES = [
    ("bf16_t32", "bf16_g32"),
    ("bf16_t32", "bf16_t32"),
    ("bf16_t32", "int12_g32"),
    ("int8_g32", "bf16_g32"),
]
BATCHES = [(0, (1,)), (0, (40,)), (0, (16, 33)), (1, (17,)), (3, (5, 70)), (18, (30,)), (4, ())]
"""Generated sequences of one row, and rows of prompts."""


def projection(rig: Attention, classes: tuple[str, str]) -> NativeLaunch:
    """The linear behind attention; it writes where qkv was."""
    return (
        "linear",
        [("arena", rig.offsets["y"]), ("weight", 1)],
        [("arena", 0)],
        {
            "n": WIDTH,
            "k": rig.shape.q,
            "layout": "q8p16",
            "activation": "none",
            "bias": 0,
            "residual": 0,
            "prompt_class": classes[0],
            "generated_class": classes[1],
            "rows": "tokens",
        },
    )


def weights(shape: Shape) -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    codes = rng.integers(-127, 128, (WIDTH, shape.q), np.int8)
    factors = rng.uniform(0.001, 0.01, (WIDTH, shape.q // 32)).astype(np.float16)
    return [aligned(identity_rope(24 * 64, shape.head_dim)), aligned(pack_q8(codes, factors))]


def parts_of(shape: Shape, batch: tuple[int, tuple[int, ...]]) -> list[Rows]:
    """Each sequence begins in this launch, in a block of its own (two for long ones)."""
    rng = np.random.default_rng(6)
    counts = [*([1] * batch[0]), *batch[1]]
    return [
        Rows(
            rng.standard_normal((count, shape.qkv)).astype(np.float32),
            0,
            (2 * i + 1, 2 * i),
            i < batch[0],
        )
        for i, count in enumerate(counts)
    ]


def replay(rig: Attention, programs: list[list[NativeLaunch]], parts: list[Rows]) -> F32:
    held = weights(rig.shape)
    rig.context.arena.view(np.float32)[:] = np.nan
    rows = rig.fill(parts)
    rig.view("qkv", rows, rig.shape.qkv)[:] = np.concatenate([part.qkv for part in parts])
    generated = sum(part.generated for part in parts)
    for program in programs:
        executable = flare_cpu.Executable(rig.context, (TOKENS, 32, 1), program, held)
        executable.replay(rows, len(parts), generated, generated, 0, 0)
    return rig.view("qkv", rows, WIDTH).copy()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("classes", CLASSES)
def test_the_projection_has_the_bits_of_launches_apart(
    isa: str, shape: Shape, classes: tuple[str, str]
) -> None:
    rig = Attention(isa, shape, threads=2, tokens=TOKENS, num_blocks=64)
    launches = [*rig.launches(), projection(rig, classes)]
    for batch in BATCHES:
        parts = parts_of(shape, batch)
        apart = replay(rig, [[launch] for launch in launches], parts)
        whole = replay(rig, [launches], parts)
        assert np.isfinite(apart).all()
        np.testing.assert_array_equal(whole.view(np.uint32), apart.view(np.uint32))


@pytest.mark.skipif(ISAS[-1] != "amx", reason="tiles are what is handed on")
@pytest.mark.parametrize(("shape", "handed"), [(SHAPES[0], True), (SHAPES[3], False)], ids=str)
def test_floats_of_prompt_rows_are_written_only_where_tiles_do_not_fit(
    shape: Shape, handed: bool
) -> None:
    rig = Attention("amx", shape, threads=2, tokens=TOKENS, num_blocks=64)
    launches = [*rig.launches(), projection(rig, CLASSES[0])]
    replay(rig, [launches], parts_of(shape, (3, (20,))))
    floats = rig.view("y", 23, shape.q)
    assert np.isfinite(floats[:3]).all()
    assert np.isnan(floats[3:]).all() == handed
