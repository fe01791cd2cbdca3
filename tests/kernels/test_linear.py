"""Native linears: bits of the numerics classes on every instruction set, and row invariance."""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import flare_cpu
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine.kernels import layouts
from tests.support import numerics
from tests.support.native import ISAS, aligned

F32 = NDArray[np.float32]
SIZES = {
    "q4p16": [(48, 96), (21, 64), (296, 64), (96, 576), (16, 2080)],
    "q8p16": [(48, 96), (37, 32), (296, 32), (96, 576)],
    "bf16p16": [(48, 96), (37, 70), (96, 576), (16, 2)],
}
CASES = [
    (layout, n, k, name)
    for layout, sizes in SIZES.items()
    for n, k in sizes
    for name in layouts.LAYOUTS[layout].classes
]
MIXED = [
    ("q4p16", "int8_g32", "bf16_t32"),
    ("q4p16", "bf16_t32", "int8_g32"),
    ("q8p16", "int8_g32", "bf16_t32"),
    ("q8p16", "int8_g32", "int8_g32"),
    ("q4p16", "int12_g32", "bf16_t32"),
    ("q4p16", "bf16_t32", "int12_g32"),
    ("q8p16", "int12_g32", "bf16_t32"),
    ("q8p16", "int12_g32", "int12_g32"),
    ("q4p16", "int12_g32", "bf16_g32"),
    ("q4p16", "bf16_g32", "bf16_t32"),
    ("q4p16", "int8_g32", "bf16_g32"),
    ("q8p16", "bf16_g32", "bf16_t32"),
    ("q8p16", "bf16_g32", "bf16_g32"),
    ("bf16p16", "bf16_t32", "bf16_t32"),
]


EMULATIONS = {
    "int8_g32": numerics.int8_g32,
    "int12_g32": numerics.int12_g32,
    "bf16_g32": numerics.bf16_g32,
}


@dataclass(frozen=True)
class Weight:
    """A random weight: packed for the kernels, and its stored parts for the emulation."""

    layout: str
    n: int
    k: int
    packed: NDArray[np.uint8]
    dense: F32
    parts: layouts.Unpacked

    def emulate(self, x: F32, name: str) -> F32:
        if name == "bf16_t32":
            return numerics.bf16_t32(x, self.dense)
        assert self.parts.scales is not None
        minima = self.parts.minima
        return EMULATIONS[name](
            x,
            self.parts.codes,
            self.parts.scales.astype(np.float32),
            None if minima is None else minima.astype(np.float32),
        )


@cache
def weight(layout: str, n: int, k: int) -> Weight:
    rng = np.random.default_rng(n * k)
    factors = [rng.normal(0, s, (n, -(-k // 32))).astype(np.float16) for s in (0.01, 0.05)]
    if layout == "q4p16":
        packed = layouts.pack_q4(rng.integers(0, 16, (n, k), np.uint8), factors[0], factors[1])
    elif layout == "q8p16":
        packed = layouts.pack_q8(rng.integers(-128, 128, (n, k)).astype(np.int8), factors[0])
    else:
        values = rng.normal(0, 0.05, (n, k)).astype(np.float32).view(np.uint32)
        packed = layouts.pack_bf16((values >> 16).astype(np.uint16))
    dense = layouts.dequantise(layout, packed, n, k)
    parts = layouts.unpack(layout, packed, n, k)
    return Weight(layout, n, k, aligned(packed), dense, parts)


def activations(rows: int, k: int) -> F32:
    """Random rows, among them zero, huge, tiny and subnormal groups."""
    x = np.random.default_rng(rows + k).normal(0, 1, (rows, k)).astype(np.float32)
    for row, first, factor in [
        (1, k, 0.0), (3, 32, 0.0), (7, 32, 1e30), (9, 32, 1e-37), (11, k, 1e-42), (14, k, 1e-36),
    ]:  # fmt: skip
        if row < rows:
            x[row, :first] *= np.float32(factor)
    return x


@cache
def context(isa: str, threads: int) -> flare_cpu.Context:
    return flare_cpu.Context(flare_cpu.ThreadPool(threads), isa, 64, 1, 1, 1, 1, 1, 1, 32, 64, 1)


def run(w: Weight, x: F32, name: str, isa: str = ISAS[-1], threads: int = 1) -> F32:
    return flare_cpu.test_linear(context(isa, threads), x, w.packed, w.layout, w.n, w.k, name)


def assert_same_bits(found: F32, expected: F32) -> None:
    differ = found.view(np.uint32) != expected.view(np.uint32)
    differ &= ~(np.isnan(found) & np.isnan(expected))  # the sign of a NaN is not defined
    assert not differ.any(), f"{differ.sum()} of {differ.size}, first {np.argwhere(differ)[0]}"


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("layout", "n", "k", "name"), CASES)
def test_bits_are_those_of_the_class(isa: str, layout: str, n: int, k: int, name: str) -> None:
    w, x = weight(layout, n, k), activations(40, k)
    expected = w.emulate(x, name)
    assert np.isfinite(expected).all()
    for threads in (1, 2):
        assert_same_bits(run(w, x, name, isa, threads), expected)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("layout", "n", "k", "name"), [c for c in CASES if c[2] < 576])
def test_a_row_is_the_same_alone_and_among_others(
    isa: str, layout: str, n: int, k: int, name: str
) -> None:
    w, x = weight(layout, n, k), activations(64, k)
    alone = np.concatenate([run(w, row[None], name, isa, 1 + i % 2) for i, row in enumerate(x)])
    for rows in (*range(1, 34), 64):
        assert_same_bits(run(w, x[:rows], name, isa, 1 + rows % 2), alone[:rows])
    assert_same_bits(run(w, x[::-1].copy(), name, isa), alone[::-1])


@pytest.mark.parametrize(("layout", "n", "k", "name"), CASES)
def test_values_are_close_to_the_dense_product(layout: str, n: int, k: int, name: str) -> None:
    w, x = weight(layout, n, k), activations(20, k).astype(np.float64)
    dense = w.dense.astype(np.float64)
    if name == "bf16_t32":  # both operands are rounded to 8 bits
        bound = 2.0**-8 * (np.abs(x) @ np.abs(dense).T)
    elif name == "bf16_g32":  # only the activation
        bound = 2.0**-9 * (np.abs(x) @ np.abs(dense).T)
    else:  # half a step of the group's scale for each activation
        steps = {"int8_g32": 254, "int12_g32": 4064}[name]
        half_step = np.abs(x).reshape(len(x), -1, 32).max(axis=2) / steps
        bound = half_step @ np.abs(dense).reshape(n, -1, 32).sum(axis=2).T
    sums = np.abs(x) @ np.abs(dense).T
    error = np.abs(run(w, x.astype(np.float32), name) - x @ dense.T)
    assert (error <= 1.001 * bound + k * 2.0**-24 * sums + 1e-33).all()


@pytest.mark.parametrize("layout", ["q4p16", "q8p16"])
@pytest.mark.parametrize("k", [96, 576, 4096])
def test_exact_codes_leave_the_rounding_of_the_activations_alone(layout: str, k: int) -> None:
    """bf16_g32 with activations that bfloat16 holds: what is left is float32 accumulation."""
    w = weight(layout, 48, k)
    x = numerics.round_bf16(np.random.default_rng(k).normal(1, 1, (20, k)).astype(np.float32))
    dense = w.dense.astype(np.float64)
    error = np.abs(run(w, x, "bf16_g32") - x.astype(np.float64) @ dense.T)
    assert w.parts.scales is not None
    largest = 31 if layout == "q4p16" else 128  # of |1 + code / 16| * 16, and of |code|
    factors = largest * np.abs(w.parts.scales.astype(np.float64))
    if w.parts.minima is not None:
        factors += np.abs(w.parts.minima.astype(np.float64)) + factors
    sums = np.abs(x).reshape(len(x), -1, 32).sum(axis=2).astype(np.float64) @ factors.T
    assert (error <= 2.0**-24 * (k / 32 + 20) * sums).all()
    assert np.sqrt(np.mean(error**2)) < 1e-6 * np.sqrt(np.mean((np.abs(x) @ np.abs(dense).T) ** 2))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("activation", ["none", "silu_mul", "gelu_mul"])
@pytest.mark.parametrize(("layout", "generated", "prompt"), MIXED)
def test_roles_bias_activation_and_residual(
    isa: str, activation: str, layout: str, generated: str, prompt: str
) -> None:
    w = weight(layout, 96, 96)
    rng = np.random.default_rng(5)
    bias = rng.normal(0, 1, w.n).astype(np.float32)
    for rows, count in [(1, 1), (1, 0), (5, 2), (40, 7), (50, 16), (70, 33)]:
        x = rng.normal(0, 1, (rows, w.k)).astype(np.float32)
        width = w.n if activation == "none" else w.n // 2
        residual = rng.normal(0, 1, (rows, width)).astype(np.float32)
        parts = [run(w, x[:count], generated)] if count else []
        parts += [run(w, x[count:], prompt)] if count < rows else []
        expected = finish(np.concatenate(parts) + bias, activation) + residual
        for threads, in_place in [(1, False), (2, True), (3, False)]:
            found = flare_cpu.test_linear(
                context(isa, threads), x, w.packed, w.layout, w.n, w.k, generated,
                bias, residual, activation, count, prompt, in_place,
            )  # fmt: skip
            if activation == "none":
                assert_same_bits(found, expected)
            else:
                np.testing.assert_allclose(found, expected, rtol=3e-6, atol=1e-5)


@pytest.mark.parametrize("activation", ["silu_mul", "gelu_mul"])
def test_activations_have_the_same_bits_on_every_instruction_set(activation: str) -> None:
    w, x = weight("q4p16", 96, 96), activations(21, 96) * np.float32(4)
    found = [
        flare_cpu.test_linear(
            context(isa, 1), x, w.packed, w.layout, w.n, w.k, "int8_g32", activation=activation
        )
        for isa in ISAS
    ]
    for other in found[1:]:
        assert_same_bits(other, found[0])


def finish(sums: F32, activation: str) -> F32:
    """Bias is in; panels of 16 columns are gate, up, gate, up ... unless activation is none."""
    if activation == "none":
        return sums
    pairs = sums.reshape(len(sums), -1, 2, 16).astype(np.float64)
    gate, up = (pairs[:, :, i].reshape(len(sums), -1) for i in (0, 1))
    if activation == "silu_mul":
        with np.errstate(over="ignore"):
            return (gate / (1 + np.exp(-gate)) * up).astype(np.float32)
    inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
    return (0.5 * gate * (1 + np.tanh(inner)) * up).astype(np.float32)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("layout", "name"), [(c[0], c[3]) for c in CASES if c[1:3] == (48, 96)])
def test_what_is_not_finite_shows_in_its_row_only(
    isa: str, value: float, layout: str, name: str
) -> None:
    w, x = weight(layout, 48, 96), activations(20, 96)
    clean = run(w, x, name, isa)
    x[4, 40] = np.float32(value)
    dirty = run(w, x, name, isa)
    assert not np.isfinite(dirty[4]).any()
    assert_same_bits(np.delete(dirty, 4, axis=0), np.delete(clean, 4, axis=0))


@pytest.mark.parametrize("name", ["int8_g32", "int12_g32"])
@pytest.mark.parametrize("isa", ISAS)
def test_extreme_codes_do_not_saturate(isa: str, name: str) -> None:
    """The largest codes against the largest activations: where 16-bit sums would overflow."""
    for sign in (1, -1):
        x = np.full((3, 64), sign * 5.0, np.float32)
        for code in (-128, 127):
            codes = np.full((16, 64), code, np.int8)
            ones = np.ones((16, 2), np.float16)
            packed = aligned(layouts.pack_q8(codes, ones))
            parts = layouts.Unpacked(codes, ones)
            w = Weight("q8p16", 16, 64, packed, codes.astype(np.float32), parts)
            found = run(w, x, name, isa)
            np.testing.assert_allclose(found, np.full((3, 16), 64 * 5.0 * sign * code), rtol=1e-6)


@pytest.mark.parametrize("name", ["int8_g32", "int12_g32", "bf16_g32"])
def test_unsupported_combinations_are_refused(name: str) -> None:
    w = weight("bf16p16", 48, 96)
    with pytest.raises(ValueError, match=f"{name}.*a quantised layout"):
        run(w, activations(1, 96), name)


@settings(max_examples=300, deadline=None)
@given(st.tuples(*[st.floats(width=32, min_value=-(2.0**40), max_value=2.0**40)] * 3))
def test_the_emulated_fma_rounds_once(values: tuple[float, float, float]) -> None:
    a, b, c = (numerics.flush(np.float32(v)) for v in values)
    found = numerics.fma(np.array([a]), np.array([b]), np.array([c]))[0]
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    if abs(exact) < Fraction(float(numerics.TINY)) * Fraction(1001, 1000):
        return  # flushed, or at the border of it
    assert abs(Fraction(float(found)) - exact) <= Fraction(float(np.spacing(np.abs(found)))) / 2


CUTS = [(pieces, run, run) for pieces in (0, 1, 5, 256) for run in (0, 2, 4, 8)]
"""Parameters of a linear's kernel; 0: absent."""


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("layout", "generated", "prompt"), MIXED)
def test_parameters_do_not_change_a_bit(isa: str, layout: str, generated: str, prompt: str) -> None:
    few, many = [(8, 8), (5, 0), (6, 2)], [(1, 1), (3, 3), (20, 20), (20, 6), (45, 3)]
    for w, activation, batches in (
        (weight(layout, 224, 64), "none", few + many),
        (weight(layout, 224, 64), "silu_mul", few + many),
        (weight(layout, 96, 1056), "none", few),
    ):
        for rows, count in batches:
            x = activations(rows, w.k)
            expected, *found = (
                flare_cpu.test_linear(
                    context(isa, threads), x, w.packed, w.layout, w.n, w.k, generated,
                    None, None, activation, count, prompt, pieces=pieces, run=run, own=own,
                )
                for threads, cuts in ((1, CUTS[:1]), (2, CUTS), (3, CUTS[5:10]))
                for pieces, run, own in cuts
            )  # fmt: skip
            for other in found:
                assert_same_bits(other, expected)


@pytest.mark.parametrize(
    ("pieces", "run", "own"),
    [(-1, 0, 0), (257, 0, 0), (0, 1, 0), (0, 3, 0), (0, 10, 0), (0, -2, 0), (0, 0, 9), (0, 0, -1)],
)
def test_parameters_out_of_range_are_refused(pieces: int, run: int, own: int) -> None:
    w = weight("q4p16", 48, 96)
    with pytest.raises(ValueError, match="pieces, run or own"):
        flare_cpu.test_linear(
            context(ISAS[-1], 1), activations(1, 96), w.packed, w.layout, w.n, w.k, "bf16_g32",
            pieces=pieces, run=run, own=own,
        )  # fmt: skip


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("activation", ["none", "silu_mul"])
@pytest.mark.parametrize(
    ("layout", "generated", "prompt"), [m for m in MIXED if m[1] != m[2] == "bf16_t32"]
)
def test_prompt_rows_of_a_second_layout_have_the_same_bits(
    isa: str, activation: str, layout: str, generated: str, prompt: str
) -> None:
    w = weight(layout, 96, 96)
    rounded = numerics.round_bf16(w.dense).view(np.uint32) >> 16
    second = aligned(layouts.pack_bf16(rounded.astype(np.uint16)))
    for rows, count in [(1, 0), (5, 2), (40, 7), (64, 0), (70, 33), (20, 20)]:
        x = activations(rows, w.k)
        one, two = (
            flare_cpu.test_linear(
                context(isa, 2), x, w.packed, w.layout, w.n, w.k, generated, None, None,
                activation, count, prompt, prompt_weight=prompt_weight,
            )
            for prompt_weight in (None, second)
        )  # fmt: skip
        assert_same_bits(two, one)


def test_a_second_layout_needs_a_class_of_its_own() -> None:
    w = weight("q4p16", 48, 96)
    second = aligned(np.zeros(layouts.packed_bytes("bf16p16", 48, 96), np.uint8))
    for prompt, packed in (("bf16_g32", second), ("bf16_t32", second[:-64])):
        with pytest.raises(ValueError, match="prompt_weight"):
            flare_cpu.test_linear(
                context(ISAS[-1], 1), activations(4, 96), w.packed, w.layout, w.n, w.k, "bf16_g32",
                generated_rows=2, prompt_numerics=prompt, prompt_weight=packed,
            )  # fmt: skip
