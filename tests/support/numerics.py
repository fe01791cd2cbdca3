"""Exact emulation of the linear numerics classes (engine/kernels/numerics.py) in numpy.

Every operation is rounded once to float32 with subnormals flushed, as the kernels run.
"""

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
TINY = np.float32(2.0**-126)
"""Smallest normal float32."""


def flush(x: NDArray[np.floating]) -> F32:
    """Round to float32 and turn subnormals into zeros of the same sign."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        y = np.asarray(x, np.float32)
        return np.where(np.abs(y) < TINY, np.copysign(np.float32(0), y), y).astype(np.float32)


def fma(a: F32, b: F32, c: F32) -> F32:
    """a * b + c rounded once.

    The product of two float32 is exact in float64. The sum is rounded to odd there (Boldo and
    Melquiond 2008: the error of the sum is found exactly by Knuth's TwoSum, and moves the last
    bit), so that the second rounding, to float32, is that of the exact value.
    """
    with np.errstate(all="ignore"):
        product = a.astype(np.float64) * b.astype(np.float64)
        addend = np.broadcast_to(c, product.shape).astype(np.float64)
        total = product + addend
        back = total - product
        error = (product - (total - back)) + (addend - back)
    bits = total.view(np.int64)
    inexact = (error != 0) & np.isfinite(total) & ((bits & 1) == 0)
    away = np.where((error > 0) == (total > 0), 1, -1)
    return flush((bits + np.where(inexact, away, 0)).view(np.float64))


def round_bf16(x: F32) -> F32:
    """Round to bfloat16, nearest even, subnormals flushed; as float32. Finite values only."""
    bits = flush(x).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def int8_g32(x: F32, codes: NDArray[np.integer], scales: F32, minima: F32 | None) -> F32:
    """x [rows, k] times a quantised weight: codes [n, k], factors [n, k / 32] as float32."""
    return _integers(127, x, codes, scales, minima)


def int12_g32(x: F32, codes: NDArray[np.integer], scales: F32, minima: F32 | None) -> F32:
    """As int8_g32, with activations of twelve bits."""
    return _integers(16 * 127, x, codes, scales, minima)


def _integers(
    largest: int, x: F32, codes: NDArray[np.integer], scales: F32, minima: F32 | None
) -> F32:
    groups = flush(x).reshape(len(x), -1, 32)
    amax = np.abs(groups).max(axis=2)
    s = flush(amax / np.float32(largest))
    with np.errstate(all="ignore"):
        inverse = np.where(s > 0, np.float32(largest) / amax, np.float32(0)).astype(np.float32)
        q = np.rint(flush(groups * inverse[..., None])).astype(np.int64)
    q[s == 0] = 0
    acc = np.zeros((len(x), len(codes)), np.float32)
    for g in range(groups.shape[1]):
        dot = (q[:, g] @ codes[:, 32 * g : 32 * g + 32].T.astype(np.int64)).astype(np.float32)
        with np.errstate(all="ignore"):
            acc = fma(dot, flush(scales[None, :, g] * s[:, g, None]), acc)
            total = flush(s[:, g] * q[:, g].sum(axis=1).astype(np.float32))
        if minima is not None:
            acc = fma(minima[None, :, g], total[:, None], acc)
    return acc


def tile_sums(a: F32, w: F32) -> F32:
    """T of one group: a [rows, 32] times w [n, 32], both bfloat16, as TDPBF16PS adds from zero."""
    chains = [np.zeros((len(a), len(w)), np.float32) for _ in range(2)]
    for i in range(32):
        chains[i % 2] = fma(a[:, i, None], w[None, :, i], chains[i % 2])
    with np.errstate(all="ignore"):
        return flush(chains[0] + chains[1]) + np.float32(0)


def bf16_g32(x: F32, codes: NDArray[np.integer], scales: F32, minima: F32 | None) -> F32:
    """x [rows, k] times a quantised weight: codes [n, k], factors [n, k / 32] as float32."""
    a, c = round_bf16(x), codes.astype(np.float32)
    if minima is not None:
        c = 1 + c / 16
        minima = fma(np.full_like(scales, -16), scales, minima)
        scales = 16 * scales
    acc = np.zeros((len(x), len(codes)), np.float32)
    one = np.ones((1, 32), np.float32)
    for g in range(scales.shape[1]):
        group = slice(32 * g, 32 * g + 32)
        acc = fma(scales[None, :, g], tile_sums(a[:, group], c[:, group]), acc)
        if minima is not None:
            acc = fma(minima[None, :, g], tile_sums(a[:, group], one), acc)
    return acc


def bf16_t32(x: F32, weight: F32) -> F32:
    """x [rows, k] times a dense weight [n, k]; k is padded to 32 with zeros."""
    pad = ((0, 0), (0, -x.shape[1] % 32))
    a, w = np.pad(round_bf16(x), pad), np.pad(round_bf16(weight), pad)
    acc = np.zeros((len(x), len(weight)), np.float32)
    for block in range(0, a.shape[1], 32):
        with np.errstate(all="ignore"):
            acc = flush(acc + tile_sums(a[:, block : block + 32], w[:, block : block + 32]))
    return acc
