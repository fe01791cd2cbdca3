"""Compiled grammars and the matchers of sequences, on llguidance."""

import re
from collections.abc import Sequence

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

_LISTING = re.compile(r"<state>|\n *\d+ \| ")


class Matcher:
    """Implements ``engine.types.GrammarMatcher``. One thread at a time may use it."""

    def __init__(self, native: LLMatcher) -> None:
        self._native = native

    @property
    def ended(self) -> bool:
        return bool(self._native.is_stopped())

    def fill(self, mask: NDArray[np.uint32]) -> str | None:
        """Releases the interpreter's lock; mask: one contiguous row."""
        self._native.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        return reason(self._native)

    def accept(self, token_id: int) -> None:
        """What the grammar does not take is told by the next ``fill``."""
        if not self._native.is_stopped():
            self._native.consume_token(token_id)


class Grammar:
    """Implements ``engine.types.CompiledGrammar``; safe to use from several threads."""

    def __init__(self, start: LLMatcher, vocab_size: int) -> None:
        self._start = start
        self._words = -(-vocab_size // 32)

    @property
    def mask_words(self) -> int:
        return self._words

    def matcher(self, output_ids: Sequence[int]) -> Matcher:
        """Follows the output from the start, so that a preempted sequence resumes where it was."""
        native = self._start.deep_copy()
        if output_ids:
            native.consume_tokens(list(output_ids))
        return Matcher(native)


def reason(native: LLMatcher) -> str | None:
    """Why a matcher is in error, in one line."""
    return one_line(native.get_error()) if native.is_error() else None


def one_line(message: str, limit: int = 300) -> str:
    """llguidance's message without state and source listing, white space joined, cut to length."""
    line = " ".join(_LISTING.split(message, maxsplit=1)[0].split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
