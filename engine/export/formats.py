"""Stored element formats in numpy: to float32, to bfloat16, to the parts of a quantised block.

Block formats as the GGUF specification (ggml) defines them: 32 values along a row; Q4_0 is
``(code - 8) * d``, Q4_1 ``code * d + m``, Q8_0 ``code * d``; d and m are fp16. In the 4-bit formats
byte i of a block holds value i in its low and value i + 16 in its high nibble.
"""

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from engine.errors import CheckpointError
from engine.export.checkpoint.base import SourceTensor
from engine.kernels.numerics import GROUP

U8 = NDArray[np.uint8]
U16 = NDArray[np.uint16]
F16 = NDArray[np.float16]
F32 = NDArray[np.float32]


class FourBit(Struct, frozen=True):
    """value = code * scale + minimum. codes u8 [n, k] below 16; the others fp16 [n, k / 32]."""

    codes: U8
    scales: F16
    minima: F16


class EightBit(Struct, frozen=True):
    """value = code * scale. codes i8 [n, k]; scales fp16 [n, k / 32]."""

    codes: NDArray[np.int8]
    scales: F16


def four_bit(tensor: SourceTensor) -> FourBit:
    """Split a Q4_0 or Q4_1 tensor into its parts, unchanged (Q4_0: minimum = -8 scale).

    Raises CheckpointError when a scale is not finite.
    """
    head = {"Q4_0": 2, "Q4_1": 4}[tensor.dtype]
    blocks = _blocks(tensor, head + 16)
    params = blocks[..., :head].copy().view(np.float16)
    nibbles = blocks[..., head:]
    codes = np.concatenate((nibbles & 15, nibbles >> 4), axis=-1)
    scales = params[..., 0]
    with np.errstate(over="ignore"):
        minima = params[..., 1] if tensor.dtype == "Q4_1" else scales * np.float16(-8)
    _check_finite(tensor, scales, minima)
    return FourBit(codes.reshape(codes.shape[0], -1), scales, minima)


def eight_bit(tensor: SourceTensor) -> EightBit:
    """Split a Q8_0 tensor into its parts, unchanged. Raises CheckpointError as ``four_bit``."""
    blocks = _blocks(tensor, 34)
    scales = blocks[..., :2].copy().view(np.float16)[..., 0]
    _check_finite(tensor, scales)
    codes = np.ascontiguousarray(blocks[..., 2:]).view(np.int8)
    return EightBit(codes.reshape(codes.shape[0], -1), scales)


def float32(tensor: SourceTensor) -> F32:
    """Return a tensor's values, in its shape. Raises CheckpointError when one is not finite."""
    if tensor.dtype in ("Q4_0", "Q4_1"):
        parts = four_bit(tensor)
        values = expand(parts.codes.astype(np.float32), parts.scales, parts.minima)
    elif tensor.dtype == "Q8_0":
        eight = eight_bit(tensor)
        values = expand(eight.codes.astype(np.float32), eight.scales)
    elif tensor.dtype == "BF16":
        values = widen(np.ascontiguousarray(tensor.data).view("<u2"))
    else:
        code = {"F32": "<f4", "F16": "<f2"}[tensor.dtype]
        values = np.ascontiguousarray(tensor.data).view(code).astype(np.float32)
    _check_finite(tensor, values)
    return values.reshape(tensor.shape)


def bfloat16(tensor: SourceTensor) -> U16:
    """Return a tensor's values as bfloat16 bits, rounded to nearest even.

    Raises CheckpointError when a value is not finite, or is too large for bfloat16.
    """
    if tensor.dtype == "BF16":
        bits = np.ascontiguousarray(tensor.data).view("<u2").astype(np.uint16)
    else:
        bits = round_bfloat16(float32(tensor))
    if np.any((bits & 0x7F80) == 0x7F80):
        raise _not_finite(tensor)
    return bits.reshape(tensor.shape)


def round_bfloat16(values: F32) -> U16:
    """Round finite float32 values to bfloat16 bits, nearest even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)


def widen(bits: U16) -> F32:
    """Widen bfloat16 bits to float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def expand(codes: F32, scales: F16, minima: F16 | None = None) -> F32:
    """Return code * scale (+ minimum) per group of 32, exact products rounded once to float32."""
    grouped = codes.reshape(*scales.shape, GROUP)
    values = grouped * scales[..., None].astype(np.float32)
    if minima is not None:
        values += minima[..., None].astype(np.float32)
    return values.reshape(codes.shape)


def _blocks(tensor: SourceTensor, size: int) -> U8:
    return tensor.data.reshape(tensor.data.shape[0], -1, size)


def _check_finite(tensor: SourceTensor, *arrays: F16 | F32) -> None:
    if not all(np.isfinite(array).all() for array in arrays):
        raise _not_finite(tensor)


def _not_finite(tensor: SourceTensor) -> CheckpointError:
    return CheckpointError(
        f"tensor {tensor.name!r} holds a value that is not a finite number, or too large to store"
    )
