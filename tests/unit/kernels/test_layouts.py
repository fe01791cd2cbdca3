"""Packed layouts: exact byte positions, round trips, dequantisation and refusals."""

import sys
from fractions import Fraction
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine.kernels import layouts

SHAPES = [(16, 32), (48, 64), (1, 32), (33, 96), (17, 320)]


def random_q4(
    n: int, k: int, seed: int = 0
) -> tuple[NDArray[np.uint8], NDArray[np.float16], NDArray[np.float16]]:
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 16, (n, k), np.uint8)
    scales = rng.normal(0, 0.01, (n, k // 32)).astype(np.float16)
    minima = rng.normal(0, 0.1, (n, k // 32)).astype(np.float16)
    return codes, scales, minima


def random_q8(n: int, k: int, seed: int = 0) -> tuple[NDArray[np.int8], NDArray[np.float16]]:
    rng = np.random.default_rng(seed)
    codes = rng.integers(-128, 128, (n, k)).astype(np.int8)
    return codes, rng.normal(0, 0.01, (n, k // 32)).astype(np.float16)


def test_q4_byte_positions() -> None:
    n, k = 40, 96
    codes, scales, minima = random_q4(n, k)
    packed = layouts.pack_q4(codes, scales, minima)
    assert packed.size == layouts.packed_bytes("q4p16", n, k) == 3 * 3 * 320
    for row in range(n):
        for column in range(k):
            block = ((row // 16) * (k // 32) + column // 32) * 320
            within = column % 32
            byte = packed[block + (within // 8) * 64 + (row % 16) * 4 + within % 4]
            nibble = byte >> 4 if within % 8 >= 4 else byte & 15
            assert nibble == codes[row, column]
    factors = packed.reshape(3, 3, 320)[:, :, 256:].copy().view(np.float16)
    assert factors[1, 2, 5] == scales[21, 2]
    assert factors[1, 2, 16 + 5] == minima[21, 2]


def test_q8_byte_positions() -> None:
    n, k = 16, 64
    codes, scales = random_q8(n, k)
    packed = layouts.pack_q8(codes, scales)
    for row in range(n):
        for column in range(k):
            within = column % 32
            at = (column // 32) * 544 + (within // 4) * 64 + row * 4 + within % 4
            assert int(packed[at]) - 128 == codes[row, column]
    assert packed[544 + 512 :].view(np.float16)[3] == scales[3, 1]


def test_bf16_byte_positions() -> None:
    values = np.arange(32 * 70, dtype=np.uint16).reshape(32, 70)
    packed = layouts.pack_bf16(values).view(np.uint16).reshape(2, 3, 16, 16, 2)
    for row, column in [(0, 0), (5, 33), (31, 69), (17, 1), (16, 64)]:
        within = column % 32
        at = packed[row // 16, column // 32, within // 2, row % 16, within % 2]
        assert at == values[row, column]
    assert not packed[:, 2, 3:].any()  # k padded from 70 to 96 with zeros


@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_round_trips(n: int, k: int) -> None:
    codes, scales, minima = random_q4(n, k)
    got = layouts.unpack("q4p16", layouts.pack_q4(codes, scales, minima), n, k)
    assert np.array_equal(got.codes, codes)
    assert np.array_equal(got.scales, scales)
    assert np.array_equal(got.minima, minima)
    signed, scales = random_q8(n, k)
    got = layouts.unpack("q8p16", layouts.pack_q8(signed, scales), n, k)
    assert got.codes.dtype == np.int8
    assert np.array_equal(got.codes, signed)
    assert np.array_equal(got.scales, scales)
    assert got.minima is None
    values = np.random.default_rng(1).integers(0, 1 << 16, (n, k - 5)).astype(np.uint16)
    got = layouts.unpack("bf16p16", layouts.pack_bf16(values), n, k - 5)
    assert np.array_equal(got.codes, values)


def test_padding_is_zero_valued() -> None:
    codes, scales, minima = random_q4(5, 32)
    packed = layouts.pack_q4(codes, scales, minima)
    assert not layouts.dequantise("q4p16", packed, 16, 32)[5:].any()
    signed, scales = random_q8(5, 32)
    assert not layouts.dequantise("q8p16", layouts.pack_q8(signed, scales), 16, 32)[5:].any()


@settings(max_examples=200, deadline=None)
@given(
    code=st.integers(0, 15),
    scale=st.floats(width=16, allow_nan=False, allow_infinity=False),
    minimum=st.floats(width=16, allow_nan=False, allow_infinity=False),
)
def test_q4_dequantisation_rounds_once(code: int, scale: float, minimum: float) -> None:
    codes = np.full((1, 32), code, np.uint8)
    factors = (np.full((1, 1), scale, np.float16), np.full((1, 1), minimum, np.float16))
    value = layouts.dequantise("q4p16", layouts.pack_q4(codes, *factors), 1, 32)[0, 0]
    exact = code * Fraction(scale) + Fraction(minimum)
    step = np.spacing(np.abs(value))
    assert abs(Fraction(float(value)) - exact) <= Fraction(float(step)) / 2


def test_dequantise_values() -> None:
    signed, scales = random_q8(20, 64)
    packed = layouts.pack_q8(signed, scales)
    expected = signed.astype(np.float32) * np.repeat(scales.astype(np.float32), 32, axis=1)
    assert np.array_equal(layouts.dequantise("q8p16", packed, 20, 64), expected)
    floats = np.random.default_rng(2).normal(size=(20, 40)).astype(np.float32)
    bits = (floats.view(np.uint32) >> 16).astype(np.uint16)
    got = layouts.dequantise("bf16p16", layouts.pack_bf16(bits), 20, 40)
    assert np.array_equal(got.view(np.uint32), bits.astype(np.uint32) << 16)


@pytest.mark.parametrize("layout", ["q4p16", "q8p16", "bf16p16"])
def test_dequantise_rows_equals_whole(layout: str) -> None:
    n, k = 50, 64
    packed = {
        "q4p16": layouts.pack_q4(*random_q4(n, k)),
        "q8p16": layouts.pack_q8(*random_q8(n, k)),
        "bf16p16": layouts.pack_bf16(
            np.random.default_rng(3).integers(0, 0x7F00, (n, k)).astype(np.uint16)
        ),
    }[layout]
    rows = np.array([49, 0, 17, 17, 32], np.int32)
    whole = layouts.dequantise(layout, packed, n, k)
    assert np.array_equal(layouts.dequantise_rows(layout, packed, n, k, rows), whole[rows])


def test_interleave() -> None:
    gate = np.arange(20 * 3).reshape(20, 3)
    up = gate + 1000
    mixed = layouts.interleave(gate, up)
    assert mixed.shape == (64, 3)
    assert np.array_equal(mixed[:16], gate[:16])
    assert np.array_equal(mixed[16:32], up[:16])
    assert np.array_equal(mixed[32:36], gate[16:])
    assert not mixed[36:48].any()
    assert np.array_equal(mixed[48:52], up[16:])


def test_refusals() -> None:
    codes, scales, minima = random_q4(16, 64)
    with pytest.raises(ValueError, match=r"must be 0 \.\. 15"):
        layouts.pack_q4(codes + np.uint8(1), scales, minima)
    with pytest.raises(ValueError, match="multiple of 32"):
        layouts.pack_q4(codes[:, :40], scales, minima)
    with pytest.raises(ValueError, match="scales must be float16"):
        layouts.pack_q4(codes, scales[:, :1], minima)
    with pytest.raises(ValueError, match="uint8 codes"):
        layouts.pack_q4(codes.astype(np.int8), scales, minima)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="uint16"):
        layouts.pack_bf16(codes)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unknown weight layout 'q5'"):
        layouts.packed_bytes("q5", 16, 32)
    packed = layouts.pack_q4(codes, scales, minima)
    with pytest.raises(ValueError, match="needs 640 bytes"):
        layouts.unpack("q4p16", packed[:-1], 16, 64)
    with pytest.raises(ValueError, match="out of range"):
        layouts.dequantise_rows("q4p16", packed, 16, 64, np.array([16]))
    with pytest.raises(ValueError, match="differ"):
        layouts.interleave(codes, codes[:8])


def test_non_contiguous_input_packs_the_same() -> None:
    codes, scales, minima = random_q4(32, 128)
    expected = layouts.pack_q4(codes[::2, :64], scales[::2, :2], minima[::2, :2])
    copies = (codes[::2, :64].copy(), scales[::2, :2].copy(), minima[::2, :2].copy())
    assert np.array_equal(expected, layouts.pack_q4(*copies))


def test_packing_is_vectorised() -> None:
    assert _lines_run(64, 64) == _lines_run(1024, 512) > 0


def _lines_run(n: int, k: int) -> int:
    """Lines of Python that packing a weight of n x k runs."""
    codes, scales, minima = random_q4(n, k)
    lines = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    former = sys.gettrace()
    sys.settrace(trace)
    try:
        layouts.pack_q4(codes, scales, minima)
    finally:
        sys.settrace(former)
    return lines
