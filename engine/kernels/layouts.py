"""Packed weight layouts: packing, unpacking and exact dequantisation in numpy.

A weight W of n rows (output columns) and k columns is cut into panels of 16 rows. A panel is a
sequence of blocks of 32 values along k, each block a fixed number of bytes that a kernel reads in
order; a packed array is ``[panels][k / 32][block_bytes]`` of bytes. Rows are padded to 16 with
zeros. Little endian.

q4p16, 320 bytes: 256 of nibbles in 4 runs of 64 (byte ``4 c + i`` of run j: low nibble is the code
of row c at ``8 j + i``, high nibble at ``8 j + 4 + i``), 16 float16 scales d, 16 float16 minima m.
``value = code * d + m``.

q8p16, 544 bytes: 512 of codes stored as ``code + 128`` in 8 runs of 64 (byte ``4 c + i`` of run j:
row c at ``4 j + i``), 16 float16 scales. ``value = code * d`` with code in -128 .. 127.

bf16p16, 1024 bytes: 16 runs of 16 pairs (row c: values at ``2 j`` and ``2 j + 1``), bfloat16.

The runs of q4p16 unpack to, and those of q8p16 and bf16p16 are, the operands of the x86 dot-product
and matrix-tile instructions as they lie (Intel SDM volume 2: VPDPBUSD, TDPBF16PS).
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from engine.kernels.numerics import GROUP, NumericsClass

PANEL = 16
"""Rows of W (output columns) per panel."""

U8 = NDArray[np.uint8]
I8 = NDArray[np.int8]
U16 = NDArray[np.uint16]
F16 = NDArray[np.float16]
F32 = NDArray[np.float32]


class PackedLayout(Struct, frozen=True):
    """One packed layout. block_bytes: bytes per 16 x 32 block; code_bytes: those of its codes.

    pad_k: whether k is padded to 32 with zeros (else it must be a multiple). classes: numerics
    classes that kernels compute on it.
    """

    name: str
    block_bytes: int
    code_bytes: int
    has_scales: bool
    has_minima: bool
    pad_k: bool
    classes: tuple[NumericsClass, ...]


_QUANTISED: tuple[NumericsClass, ...] = ("bf16_g32", "bf16_t32", "int12_g32", "int8_g32")

LAYOUTS: Mapping[str, PackedLayout] = MappingProxyType(
    {
        layout.name: layout
        for layout in (
            PackedLayout("q4p16", 320, 256, True, True, False, _QUANTISED),
            PackedLayout("q8p16", 544, 512, True, False, False, _QUANTISED),
            PackedLayout("bf16p16", 1024, 1024, False, False, True, ("bf16_t32",)),
        )
    }
)
"""Every packed layout, by the name that programs and storage tables use."""


class Unpacked(NamedTuple):
    """A weight's stored values. codes: u8 (q4p16), i8 (q8p16) or bfloat16 bits as u16 (bf16p16),
    [n, k]; scales and minima: float16 [n, k / 32] where the layout has them."""

    codes: NDArray[Any]
    scales: F16 | None = None
    minima: F16 | None = None


def layout_of(name: str) -> PackedLayout:
    """Return the layout called ``name``; ValueError names the known ones otherwise."""
    if name not in LAYOUTS:
        raise ValueError(f"unknown weight layout {name!r}; known: {', '.join(LAYOUTS)}")
    return LAYOUTS[name]


def packed_bytes(layout: str, n: int, k: int) -> int:
    """Bytes of a packed n x k weight. ValueError when k does not suit the layout."""
    spec = layout_of(layout)
    return _panels(n) * _blocks(spec, k) * spec.block_bytes


def pack_q4(codes: U8, scales: F16, minima: F16) -> U8:
    """Pack 4-bit codes (0 .. 15) [n, k] with scales and minima [n, k / 32] to q4p16 bytes.

    A symmetric format with offset 8 has minima ``-8 * scale``. The result is one-dimensional.
    """
    spec, blocks = LAYOUTS["q4p16"], _check_codes("q4p16", codes, np.uint8)
    if codes.size and int(codes.max()) > 15:
        raise ValueError(f"q4p16 codes must be 0 .. 15, found {int(codes.max())}")
    words = _pad_rows(codes).view(np.uint32).reshape(-1, PANEL, blocks, 4, 2)
    runs = words[..., 0] | (words[..., 1] << np.uint32(4))
    packed = _empty(spec, codes.shape[0], blocks)
    _store_runs(packed, runs)
    _store_factors(packed, 256, scales, codes.shape[0], "scales")
    _store_factors(packed, 288, minima, codes.shape[0], "minima")
    return packed.reshape(-1)


def pack_q8(codes: I8, scales: F16) -> U8:
    """Pack signed 8-bit codes [n, k] with scales [n, k / 32] to q8p16 bytes (one-dimensional)."""
    spec, blocks = LAYOUTS["q8p16"], _check_codes("q8p16", codes, np.int8)
    stored = _pad_rows(codes).view(np.uint8) ^ np.uint8(0x80)  # two's complement + 128
    packed = _empty(spec, codes.shape[0], blocks)
    _store_runs(packed, stored.view(np.uint32).reshape(-1, PANEL, blocks, 8))
    _store_factors(packed, 512, scales, codes.shape[0], "scales")
    return packed.reshape(-1)


def pack_bf16(values: U16) -> U8:
    """Pack bfloat16 bit patterns [n, k] to bf16p16 bytes (one-dimensional); k is padded to 32."""
    if values.ndim != 2 or values.dtype != np.uint16:
        raise ValueError(f"bf16p16 takes uint16 [n, k], found {values.dtype} {values.shape}")
    n, k = values.shape
    spec = LAYOUTS["bf16p16"]
    blocks = _blocks(spec, k)
    padded = np.zeros((_panels(n) * PANEL, blocks * GROUP), np.uint16)
    padded[:n, :k] = values
    packed = _empty(spec, n, blocks)
    _store_runs(packed, padded.view(np.uint32).reshape(-1, PANEL, blocks, 16))
    return packed.reshape(-1)


def unpack(layout: str, packed: U8, n: int, k: int) -> Unpacked:
    """Return what was packed, bit for bit; ValueError when the byte count does not fit n x k."""
    spec = layout_of(layout)
    blocks = _as_blocks(spec, packed, n, k)
    rows = np.arange(n)
    codes = _row_codes(spec, blocks, rows)[:, :k]
    scales = _row_factors(spec, blocks, rows, 0) if spec.has_scales else None
    minima = _row_factors(spec, blocks, rows, 1) if spec.has_minima else None
    return Unpacked(codes, scales, minima)


def dequantise(layout: str, packed: U8, n: int, k: int) -> F32:
    """Return the weight as float32 [n, k]: ``fma(code, d, m)`` rounded once, or bf16 widened."""
    return dequantise_rows(layout, packed, n, k, np.arange(n))


def dequantise_rows(layout: str, packed: U8, n: int, k: int, rows: NDArray[np.integer[Any]]) -> F32:
    """Return the given rows of the weight as float32 [len(rows), k] (an embedding look-up)."""
    spec = layout_of(layout)
    blocks = _as_blocks(spec, packed, n, k)
    if rows.size and (int(rows.min()) < 0 or int(rows.max()) >= n):
        raise ValueError(f"row out of range 0 .. {n - 1}")
    codes = _row_codes(spec, blocks, rows)
    if not spec.has_scales:
        widened = (codes.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return widened[:, :k]
    scales = _row_factors(spec, blocks, rows, 0).astype(np.float64)
    # Codes have 8 bits, float16 factors 11 and exponents in -24 .. 15: exact in float64, so the
    # one rounding is the conversion to float32.
    values = codes.reshape(len(rows), -1, GROUP).astype(np.float64) * scales[..., None]
    if spec.has_minima:
        values += _row_factors(spec, blocks, rows, 1).astype(np.float64)[..., None]
    return values.reshape(len(rows), -1).astype(np.float32)[:, :k]


def interleave(gate: NDArray[Any], up: NDArray[Any]) -> NDArray[Any]:
    """Interleave rows in panels of 16: gate 0 .. 15, up 0 .. 15, gate 16 .. 31, up 16 .. 31 ...

    For the fused gate and up weight of ``silu_mul``; apply it to codes, scales and minima alike.
    Both have the same shape [n, ...]; n is padded to 16 with zeros.
    """
    if gate.shape != up.shape or gate.dtype != up.dtype:
        raise ValueError(f"gate {gate.dtype} {gate.shape} and up {up.dtype} {up.shape} differ")
    panels, tail = _panels(gate.shape[0]), gate.shape[1:]
    pair = [_pad_rows(part).reshape(panels, 1, PANEL, *tail) for part in (gate, up)]
    return np.concatenate(pair, axis=1).reshape(panels * 2 * PANEL, *tail)


def _panels(n: int) -> int:
    if n < 1:
        raise ValueError(f"a weight needs at least one row, found {n}")
    return -(-n // PANEL)


def _blocks(spec: PackedLayout, k: int) -> int:
    if k < 1 or (k % GROUP and not spec.pad_k):
        raise ValueError(f"{spec.name} needs a positive multiple of {GROUP} columns, found {k}")
    return -(-k // GROUP)


def _check_codes(name: str, codes: NDArray[Any], dtype: type[np.generic]) -> int:
    if codes.ndim != 2 or codes.dtype != dtype:
        raise ValueError(
            f"{name} takes {np.dtype(dtype)} codes [n, k], found {codes.dtype} {codes.shape}"
        )
    return _blocks(LAYOUTS[name], codes.shape[1])


def _pad_rows(rows: NDArray[Any]) -> NDArray[Any]:
    """Return ``rows`` C-contiguous with its first axis padded to a multiple of 16 by zeros."""
    n = rows.shape[0]
    if n % PANEL == 0:
        return np.ascontiguousarray(rows)
    padded = np.zeros((_panels(n) * PANEL, *rows.shape[1:]), rows.dtype)
    padded[:n] = rows
    return padded


def _empty(spec: PackedLayout, n: int, blocks: int) -> U8:
    return np.empty((_panels(n), blocks, spec.block_bytes), np.uint8)


def _store_runs(packed: U8, words: NDArray[np.uint32]) -> None:
    """Write words [panel, row, block, run] to the head of each block as [run, row]."""
    panels, rows, blocks, runs = words.shape
    out = np.ndarray(
        (panels, blocks, runs, rows), np.uint32, packed, 0, (*packed.strides[:2], 4 * rows, 4)
    )
    out[...] = words.transpose(0, 2, 3, 1)


def _store_factors(packed: U8, offset: int, factors: F16, n: int, what: str) -> None:
    panels, blocks, _ = packed.shape
    if factors.dtype != np.float16 or factors.shape != (n, blocks):
        raise ValueError(
            f"{what} must be float16 [{n}, {blocks}], found {factors.dtype} {factors.shape}"
        )
    out = np.ndarray((panels, blocks, PANEL), np.float16, packed, offset, (*packed.strides[:2], 2))
    out[...] = _pad_rows(factors).reshape(panels, PANEL, blocks).transpose(0, 2, 1)


def _as_blocks(spec: PackedLayout, packed: U8, n: int, k: int) -> U8:
    expected = packed_bytes(spec.name, n, k)
    if packed.dtype != np.uint8 or packed.size != expected:
        raise ValueError(
            f"{spec.name} {n} x {k} needs {expected} bytes, found {packed.size} {packed.dtype}"
        )
    flat = np.ascontiguousarray(packed)
    return flat.reshape(_panels(n), _blocks(spec, k), spec.block_bytes)


def _row_codes(spec: PackedLayout, blocks: U8, rows: NDArray[np.integer[Any]]) -> NDArray[Any]:
    """Gather the codes of ``rows`` as [len(rows), padded k]."""
    runs = spec.code_bytes // (4 * PANEL)
    words = np.ndarray(
        (*blocks.shape[:2], runs, PANEL), np.uint32, blocks, 0, (*blocks.strides[:2], 4 * PANEL, 4)
    )
    picked = np.ascontiguousarray(words[rows // PANEL, :, :, rows % PANEL])  # [rows, block, run]
    if spec.name == "bf16p16":
        return picked.view(np.uint16).reshape(len(rows), -1)
    if spec.name == "q8p16":
        stored = picked.view(np.uint8).reshape(len(rows), -1)
        return (stored ^ np.uint8(0x80)).view(np.int8)
    low = picked & np.uint32(0x0F0F0F0F)
    high = (picked >> np.uint32(4)) & np.uint32(0x0F0F0F0F)
    return np.stack((low, high), axis=-1).view(np.uint8).reshape(len(rows), -1)


def _row_factors(spec: PackedLayout, blocks: U8, rows: NDArray[np.integer[Any]], which: int) -> F16:
    """Gather scales (0) or minima (1) of ``rows`` as float16 [len(rows), k / 32]."""
    factors = np.ndarray(
        (*blocks.shape[:2], PANEL),
        np.float16,
        blocks,
        spec.code_bytes + 2 * PANEL * which,
        (*blocks.strides[:2], 2),
    )
    return np.ascontiguousarray(factors[rows // PANEL, :, rows % PANEL])
