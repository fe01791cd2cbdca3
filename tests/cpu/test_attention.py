"""Paged attention: against a dense oracle, and its bits under every way to cut the same work."""

import numpy as np
import pytest

from tests.support.native import F32, ISAS, Attention, Rows, Shape, dense_attention

SHAPES = [
    Shape(),
    Shape(heads=9, kv_heads=3, head_dim=64),
    Shape(heads=4, kv_heads=4, head_dim=32),
    Shape(heads=5, kv_heads=1, head_dim=80),
    Shape(heads=20, kv_heads=1, head_dim=18),
    Shape(heads=2, kv_heads=1, head_dim=256),
]


def rows_of(shape: Shape, count: int, seed: int, scale: float = 1.0) -> F32:
    random = np.random.default_rng(seed)
    return (random.standard_normal((count, shape.qkv)) * scale).astype(np.float32)


def blocks_of(count: int, first: int = 0) -> tuple[int, ...]:
    """Blocks in an order that is not theirs."""
    needed = -(-count // 64)
    return (
        tuple(first + (i * 7 + 3) % needed for i in range(needed))
        if needed % 7
        else tuple(range(first, first + needed))
    )


def whole(attention: Attention, qkv: F32, generated: bool, first: int = 0) -> F32:
    """All rows of a sequence, in launches as large as the rig takes."""
    blocks = blocks_of(len(qkv), first)
    step = 320
    return np.concatenate(
        [
            attention.run([Rows(qkv[i : i + step], i, blocks, generated)])[0]
            for i in range(0, len(qkv), step)
        ]
    )


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("generated", [False, True])
def test_matches_a_dense_oracle(isa: str, shape: Shape, generated: bool) -> None:
    count = 70 if isa == "portable" else 300
    qkv = rows_of(shape, count, 1)
    found = whole(Attention(isa, shape), qkv, generated)
    expected = dense_attention(qkv, shape, generated)
    # The prompt role rounds probabilities to bfloat16: 2^-9, of values of about 1.
    tolerance = 5e-6 if generated else 6e-3
    assert np.abs(found - expected).max() < tolerance


@pytest.mark.parametrize("generated", [False, True])
def test_every_instruction_set_gives_the_same_bits(generated: bool) -> None:
    for shape, count in ((SHAPES[1], 150), (SHAPES[3], 90), (SHAPES[4], 70)):
        qkv = rows_of(shape, count, 2, scale=2.0)
        first, *others = (whole(Attention(isa, shape), qkv, generated) for isa in ISAS)
        for other in others:
            np.testing.assert_array_equal(first.view(np.uint32), other.view(np.uint32))


@pytest.mark.parametrize("isa", ISAS[1:] or ISAS)
@pytest.mark.parametrize("generated", [False, True])
@pytest.mark.parametrize("chunks", [(1, 63, 64, 22, 150), (299, 1), (65, 65, 65, 65, 40)])
def test_chunks_do_not_change_a_bit(isa: str, generated: bool, chunks: tuple[int, ...]) -> None:
    shape = SHAPES[1]
    qkv = rows_of(shape, 300, 3)
    expected = whole(Attention(isa, shape), qkv, generated)
    attention, blocks, found, start = Attention(isa, shape, threads=2), blocks_of(300), [], 0
    for count in chunks:
        part = Rows(qkv[start : start + count], start, blocks, generated)
        found.append(attention.run([part])[0])
        start += count
    np.testing.assert_array_equal(np.concatenate(found), expected)


@pytest.mark.parametrize("isa", ISAS[1:] or ISAS)
def test_batch_mates_do_not_change_a_bit(isa: str) -> None:
    shape = SHAPES[1]
    lengths = [(1, True), (64, True), (65, True), (257, True), (3, False), (129, False)]
    alone, parts, attention, first = [], [], Attention(isa, shape, threads=2), 0
    for seed, (length, generated) in enumerate(lengths):
        qkv = rows_of(shape, length, 10 + seed)
        # Its last rows run in the batch, those before them run first.
        last = 1 if generated else min(length, 30)
        blocks = blocks_of(length, first)
        first += len(blocks)
        single = Attention(isa, shape)
        for rig in (single, attention):
            if length > last:
                rig.run([Rows(qkv[:-last], 0, blocks)])
        part = Rows(qkv[-last:], length - last, blocks, generated)
        alone.append(single.run([part])[0])
        parts.append(part)
    for found, expected in zip(attention.run(parts), alone, strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("isa", ISAS[1:] or ISAS)
@pytest.mark.parametrize("length", [1, 64, 255, 256, 257, 700, 1100])
def test_threads_that_share_the_keys_of_one_row_do_not_change_a_bit(isa: str, length: int) -> None:
    shape = SHAPES[1]
    qkv = rows_of(shape, length, 4)
    outputs = []
    for threads in (1, 2, 5):
        attention, blocks = Attention(isa, shape, threads), blocks_of(length)
        for start in range(0, length - 1, 320):
            attention.run([Rows(qkv[start : min(start + 320, length - 1)], start, blocks)])
        outputs.append(attention.run([Rows(qkv[-1:], length - 1, blocks, True)])[0])
    expected = dense_attention(qkv, shape, generated=True)[-1:]
    assert np.abs(outputs[0] - expected).max() < 5e-6
    for other in outputs[1:]:
        np.testing.assert_array_equal(other, outputs[0])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("generated", [False, True])
def test_what_a_block_held_before_does_not_matter(isa: str, generated: bool) -> None:
    shape = SHAPES[1]
    for length in (1, 33, 64, 70, 97):
        qkv = rows_of(shape, length, 5)
        clean, stale = Attention(isa, shape), Attention(isa, shape)
        stale.context.kv_cache[:] = 0xFF  # NaN everywhere
        np.testing.assert_array_equal(whole(stale, qkv, generated), whole(clean, qkv, generated))


@pytest.mark.parametrize("generated", [False, True])
def test_a_row_that_is_not_finite_spoils_its_own_sequence_only(generated: bool) -> None:
    shape = SHAPES[1]
    good, bad = rows_of(shape, 40, 6), rows_of(shape, 40, 7)
    bad[5] = np.nan
    attention = Attention(ISAS[-1], shape)
    spoilt, kept = attention.run([Rows(bad, 0, (2,), generated), Rows(good, 0, (4,), generated)])
    np.testing.assert_array_equal(kept, whole(Attention(ISAS[-1], shape), good, generated))
    assert np.isnan(spoilt[5:]).all()


@pytest.mark.parametrize("generated", [False, True])
def test_large_scores_stay_finite(generated: bool) -> None:
    shape = SHAPES[1]
    qkv = rows_of(shape, 130, 8, scale=40.0)
    found = whole(Attention(ISAS[-1], shape), qkv, generated)
    assert np.isfinite(found).all()
    difference = np.abs(found - dense_attention(qkv, shape, generated))
    assert difference.max() < (5e-2 if generated else 0.3)
