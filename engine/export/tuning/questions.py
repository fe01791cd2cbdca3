"""What is measured: one question per shape and row class, and one per graph's whole step."""

import hashlib
from collections.abc import Callable

from msgspec import Struct, field

from engine.ir.program import Program


class Batch(Struct, frozen=True):
    """Rows of a measured launch: ``generated`` sequences of one row each, then one prompt chunk.

    context: keys that come before each of these rows' sequences.
    """

    generated: int
    prompt: int
    context: int

    @property
    def rows(self) -> int:
        return self.generated + self.prompt


class Question(Struct, frozen=True):
    """Which of some programs is the fastest on a batch. options: names; the first is the heuristic.

    key: of the record and the journal entry. check: find out whether all give the same bits.
    """

    key: str
    options: tuple[str, ...]
    programs: tuple[Program, ...]
    batch: Batch
    check: bool = False

    @property
    def seed(self) -> int:
        """Decides the order of the rounds."""
        return int.from_bytes(hashlib.sha256(self.key.encode()).digest()[:8], "little")


class Measurement(Struct, frozen=True):
    """An answered question. samples: seconds of each option, by name.

    checked: what the options were checked against, or None. refused: why an option may not win.
    """

    key: str
    samples: dict[str, list[float]]
    checked: str | None = None
    refused: dict[str, str] = field(default_factory=dict)


Ask = Callable[[Question], Measurement]
"""Answers a question: measures it, or finds it in the journal."""
