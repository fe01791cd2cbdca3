"""Captured programs: straight-line launches over named buffers.

A program is the unit that a graph captures. It is immutable, has no control flow and no
allocation: every temporary has an arena offset that the memory plan chose at export.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Literal

from msgspec import Struct, field

Dim = int | str
"""A dimension: a constant, or one of ``SYMBOLS`` that each replay binds."""

SYMBOLS = ("tokens", "seqs", "logits")
"""Rows of the launch; sequences' segments in it; rows whose logits are wanted."""

DType = Literal["f32", "i32", "u8"]
Attr = int | float | str | bool


class Space(StrEnum):
    """Where a buffer lives and who owns it."""

    INPUT = "input"  # filled by the host before each replay
    WEIGHT = "weight"  # a storage tensor, read-only
    STATE = "state"  # the paged key/value cache, owned by the device
    TEMP = "temp"  # in the arena, at ``offset``
    OUTPUT = "output"  # in the arena, at ``offset``; read by the host after the replay


PLACED = (Space.TEMP, Space.OUTPUT)
"""Spaces of the buffers that have a place in the arena."""


class Buffer(Struct, frozen=True):
    """A named buffer. ``offset`` is in bytes into the arena (TEMP and OUTPUT only).

    Symbolic dimensions are sized by the domain's capacity in the memory plan.
    """

    name: str
    space: Space
    dtype: DType
    shape: tuple[Dim, ...]
    offset: int | None = None


class Launch(Struct, frozen=True):
    """One kernel launch. Buffers are named; ``kernel`` is a catalog kernel id."""

    op: str
    kernel: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Attr] = field(default_factory=dict)


class Domain(Struct, frozen=True):
    """The largest batch that a program takes. A replay may carry any batch within it.

    tokens: rows of the launch. seqs: segments (runs of rows of one sequence and role).
    logits: rows whose logits are computed.
    """

    tokens: int
    seqs: int
    logits: int

    def bind(self, symbol: str) -> int:
        """Return the capacity of a symbolic dimension."""
        return {"tokens": self.tokens, "seqs": self.seqs, "logits": self.logits}[symbol]


class Program(Struct, frozen=True):
    """A captured program. ``buffers`` holds every buffer that a launch names, by name."""

    name: str
    domain: Domain
    buffers: Mapping[str, Buffer]
    launches: tuple[Launch, ...]
    arena_bytes: int = 0
