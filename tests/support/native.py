"""Hand-built native programs: one layer of attention with its cache, and single ops."""

from collections.abc import Sequence
from dataclasses import dataclass

import flare_cpu
import numpy as np
from numpy.typing import NDArray

from engine.device.cpu.lower import NativeLaunch

F32 = NDArray[np.float32]

ISAS = ["portable", *(name for name, found in flare_cpu.features().items() if found)]
"""Instruction-set paths that this machine can run."""
LN2 = 0.6931471805599453


def aligned(array: NDArray[np.generic]) -> NDArray[np.uint8]:
    """Return the array's bytes, flat, at a multiple of 64."""
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    raw = np.empty(flat.size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    raw[start : start + flat.size] = flat
    return raw[start : start + flat.size]


def bf16(values: F32) -> F32:
    """Round to bfloat16 (nearest even), as float32."""
    bits = values.astype(np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32)


@dataclass(frozen=True)
class Shape:
    """Heads of one attention layer."""

    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 64

    @property
    def qkv(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def q(self) -> int:
        return self.heads * self.head_dim


@dataclass(frozen=True)
class Rows:
    """Consecutive rows of one sequence: qkv [n, shape.qkv], from position ``start`` on."""

    qkv: F32
    start: int
    blocks: tuple[int, ...]
    generated: bool = False


class Attention:
    """rope_store_kv and paged_attention of one layer, with its own context and cache."""

    def __init__(
        self,
        isa: str,
        shape: Shape = Shape(),
        threads: int = 1,
        tokens: int = 320,
        num_blocks: int = 40,
        max_blocks: int = 24,
        rope: F32 | None = None,
    ) -> None:
        self.shape = shape
        self.offsets = {"qkv": 0, "q": tokens * shape.qkv * 4}
        self.offsets["y"] = self.offsets["q"] + -(-tokens * shape.q * 4 // 64) * 64
        self.context = flare_cpu.Context(
            flare_cpu.ThreadPool(threads), isa, self.offsets["y"] + tokens * shape.q * 4,
            tokens, 32, 1, max_blocks, 1, shape.kv_heads, shape.head_dim, 64, num_blocks,
        )  # fmt: skip
        table = identity_rope(max_blocks * 64, shape.head_dim) if rope is None else rope
        self.executable = flare_cpu.Executable(
            self.context, (tokens, 32, 1), self.launches(), [aligned(table)]
        )

    def launches(self) -> list[NativeLaunch]:
        at = self.offsets
        sizes: dict[str, int | float | str] = {
            "heads": self.shape.heads,
            "kv_heads": self.shape.kv_heads,
            "head_dim": self.shape.head_dim,
            "layer": 0,
        }
        named = [("input", "positions"), ("input", "seg_starts"), ("input", "seq_lens")]
        return [
            (
                "rope_store_kv",
                [
                    ("arena", at["qkv"]),
                    ("weight", 0),
                    ("input", "positions"),
                    ("input", "slots"),
                    ("state", "kv_cache"),
                ],
                [("arena", at["q"])],
                sizes,
            ),
            (
                "paged_attention",
                [
                    ("arena", at["q"]),
                    ("state", "kv_cache"),
                    *named,
                    ("input", "block_tables"),
                ],
                [("arena", at["y"])],
                {**sizes, "scale": self.shape.head_dim**-0.5},
            ),
        ]

    def view(self, name: str, rows: int, width: int) -> F32:
        """The first rows of a buffer in the arena."""
        start = self.offsets[name]
        return (
            self.context.arena[start : start + rows * width * 4]
            .view(np.float32)
            .reshape(rows, width)
        )

    def fill(self, parts: Sequence[Rows]) -> int:
        """Fill the inputs; generated parts must come first. Returns the number of rows."""
        c, row = self.context, 0
        for i, part in enumerate(parts):
            count = len(part.qkv)
            positions = np.arange(part.start, part.start + count)
            blocks = np.array(part.blocks)
            c.positions[row : row + count] = positions
            c.slots[row : row + count] = blocks[positions // 64] * 64 + positions % 64
            c.seg_starts[i] = row
            c.seq_lens[i] = part.start + count
            c.block_tables[i, : len(blocks)] = blocks
            row += count
        c.seg_starts[len(parts)] = row
        return row

    def run(self, parts: Sequence[Rows]) -> list[F32]:
        """Replay the rows in one launch; returns each part's outputs [n, heads * head_dim]."""
        rows = self.fill(parts)
        qkv = np.concatenate([part.qkv for part in parts])
        self.view("qkv", rows, self.shape.qkv)[:] = qkv
        generated = [part for part in parts if part.generated]
        self.executable.replay(
            rows, len(parts), sum(len(p.qkv) for p in generated), len(generated), 0, 0
        )
        y = self.view("y", rows, self.shape.q).copy()
        return np.split(y, np.cumsum([len(part.qkv) for part in parts])[:-1])


def identity_rope(positions: int, head_dim: int) -> F32:
    """Angles of zero: cos 1, sin 0."""
    half = np.ones((positions, head_dim // 2), np.float32)
    return np.concatenate([half, np.zeros_like(half)], axis=1)


def dense_attention(qkv: F32, shape: Shape, generated: bool) -> NDArray[np.float64]:
    """Causal attention of a whole sequence in float64 over bfloat16 keys and values.

    Rows of the prompt role round their scaled queries (base-2 softmax) to bfloat16 as well.
    """
    n, d = len(qkv), shape.head_dim
    parts = qkv.reshape(n, -1, d)
    scale = np.float32(d**-0.5 / LN2)
    scaled = parts[:, : shape.heads] * scale
    q = (scaled if generated else bf16(scaled)).astype(np.float64)
    k = bf16(parts[:, shape.heads : shape.heads + shape.kv_heads].copy()).astype(np.float64)
    v = bf16(parts[:, shape.heads + shape.kv_heads :].copy()).astype(np.float64)
    group = shape.heads // shape.kv_heads
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = np.einsum("qhd,khd->hqk", q, k) * LN2
    scores[:, np.triu(np.ones((n, n), bool), 1)] = -np.inf
    p = np.exp(scores - scores.max(axis=2, keepdims=True))
    p /= p.sum(axis=2, keepdims=True)
    return np.einsum("hqk,khd->qhd", p, v).reshape(n, -1)
