"""The rotary table: cosines and sines of every position (Su et al. 2021, RoFormer).

Frequencies and angles are float32, as the Llama reference computes them; each power, cosine and
sine is the float64 value rounded once, so every machine writes the same table.
"""

import math

import numpy as np
from numpy.typing import NDArray

from engine.export.checkpoint.base import RopeSpec

F32 = NDArray[np.float32]


def rope_table(spec: RopeSpec, head_dim: int, positions: int) -> F32:
    """Return f32 [positions, head_dim]: cosines in the first half of a row, sines in the second."""
    frequencies = inverse_frequencies(spec, head_dim)
    angles = np.arange(positions, dtype=np.float32)[:, None] * frequencies
    table = np.empty((positions, head_dim), np.float32)
    wide = angles.astype(np.float64)
    table[:, : head_dim // 2] = np.cos(wide)
    table[:, head_dim // 2 :] = np.sin(wide)
    return table


def inverse_frequencies(spec: RopeSpec, head_dim: int) -> F32:
    """Return f32 [head_dim / 2]: theta^(-2i / head_dim), scaled as the spec says."""
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    powers = np.power(spec.theta, exponents.astype(np.float64)).astype(np.float32)
    frequencies: F32 = np.float32(1) / powers
    if spec.kind == "linear":
        frequencies = frequencies / np.float32(spec.factor)
    elif spec.kind == "llama3":
        frequencies = _llama3(frequencies, spec)
    if spec.factors is not None:
        factors: F32 = np.array(spec.factors, np.float32)
        frequencies = frequencies / factors
    return frequencies


def _llama3(frequencies: F32, spec: RopeSpec) -> F32:
    """The piecewise scaling of Llama 3.1: long wavelengths are divided by the factor, short ones
    kept, those between blended linearly in context / wavelength."""
    one, factor = np.float32(1), np.float32(spec.factor)
    low, high = np.float32(spec.low_freq_factor), np.float32(spec.high_freq_factor)
    context = np.float32(spec.original_context)
    wavelengths = np.float32(2 * math.pi) / frequencies
    blend = (context / wavelengths - low) / (high - low)
    blended = (one - blend) * frequencies / factor + blend * frequencies
    long = wavelengths > np.float32(spec.original_context / spec.low_freq_factor)
    short = wavelengths < np.float32(spec.original_context / spec.high_freq_factor)
    scaled: F32 = np.where(long, frequencies / factor, np.where(short, frequencies, blended))
    return scaled
