"""Quantisation of float weights to groups of 32 along k."""

import numpy as np

from engine.errors import CheckpointError
from engine.export.formats import F16, F32, EightBit, FourBit
from engine.kernels.numerics import GROUP


def quantize_eight_bit(name: str, values: F32) -> EightBit:
    """Quantise symmetrically: scale = max|w| / 127 as fp16, code = round(w / scale), half to even.

    values: finite f32 [n, k], k a multiple of 32. Raises CheckpointError (naming the weight) when
    a scale does not fit fp16.
    """
    groups = _groups(values)
    scales = _to_half(name, np.abs(groups).max(axis=-1) / np.float32(127))
    codes = np.rint(groups * _inverse(scales)[..., None])
    codes = np.clip(codes, -127, 127).astype(np.int8)
    return EightBit(codes.reshape(values.shape), scales)


def quantize_four_bit(name: str, values: F32) -> FourBit:
    """Quantise between a group's extremes: minimum = min(w), scale = (max - min) / 15, both fp16.

    Arguments and errors as ``quantize_eight_bit``.
    """
    groups = _groups(values)
    minima = _to_half(name, groups.min(axis=-1))
    spread = groups.max(axis=-1) - minima.astype(np.float32)
    scales = _to_half(name, np.maximum(spread, 0) / np.float32(15))
    steps = (groups - minima[..., None].astype(np.float32)) * _inverse(scales)[..., None]
    codes = np.clip(np.rint(steps), 0, 15).astype(np.uint8)
    return FourBit(codes.reshape(values.shape), scales, minima)


def _groups(values: F32) -> F32:
    rows, k = values.shape
    return values.reshape(rows, k // GROUP, GROUP)


def _to_half(name: str, values: F32) -> F16:
    with np.errstate(over="ignore"):
        half = values.astype(np.float16)
    if not np.isfinite(half).all():
        raise CheckpointError(
            f"weight {name!r} has values too large to quantise",
            "Export with --quantization none.",
        )
    return half


def _inverse(scales: F16) -> F32:
    """1 / scale, and 0 where the scale is 0 (every value of the group is then stored as one)."""
    wide = scales.astype(np.float32)
    inverse: F32 = np.divide(np.float32(1), wide, out=np.zeros_like(wide), where=wide != 0)
    return inverse
