"""Draft tokens from a sequence's own text: what followed its last tokens when they came before.

Prompt lookup: Saxena 2023, "Prompt Lookup Decoding". Drafts are guesses: the model verifies each.
"""

from collections.abc import Sequence as Seq

from msgspec import Struct

LONGEST, SHORTEST = 4, 2
"""Tokens at the end of the text that are looked up; longer matches are preferred."""
LONGEST_PAUSE = 64
"""Most tokens that go undrafted after drafts that were wrong from the first token on."""
MOST_ROWS = 16
"""Rows up to which drafts are added to a step: they cost little beside the first ones."""


class DraftLimits(Struct, frozen=True):
    """tokens: drafts per sequence and step. rows: of a step with drafts, at most."""

    tokens: int
    rows: int


def draft_limits(tokens: int, capacity: int) -> DraftLimits | None:
    """Limits for ``tokens`` drafts; capacity: rows that the largest decode graph takes."""
    return DraftLimits(tokens, min(max(MOST_ROWS, 1 + tokens), capacity)) if tokens else None


class NgramDrafter:
    """Proposes drafts for one sequence, at a constant cost per token of its text.

    most: drafts per step. Drafts that the model accepts whole let the next ones be longer, up to
    ``most``; those it rejects make them shorter, and when the first is wrong, none are proposed
    for a while, each time twice as long.
    """

    def __init__(self, prompt: Seq[int], most: int) -> None:
        self._tokens: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}  # n-gram -> position of what followed it last
        self._prompt_len = len(prompt)
        self._most = self._limit = most
        self._drafts: list[int] = []  # proposed last, for the positions from _drafted_at on
        self._drafted_at = 0
        self._pause = 1
        self._resume_at = 0
        self._extend(prompt)

    def propose(self, output: Seq[int], most: int) -> list[int]:
        """Return up to ``most`` tokens that may follow. output: that of the sequence so far."""
        self._extend(output[len(self._tokens) - self._prompt_len :])
        self._learn()
        count = min(self._limit, most)
        known = len(self._tokens)
        if count < 1 or known < self._resume_at:
            return []
        self._drafts, self._drafted_at = self._continuation(count), known
        return self._drafts

    def _extend(self, tokens: Seq[int]) -> None:
        """Append tokens, and index each with what stands before it."""
        text, after = self._tokens, self._after
        for token in tokens:
            known = len(text)
            for size in range(SHORTEST, min(LONGEST, known) + 1):
                after[tuple(text[known - size :])] = known
            text.append(token)

    def _learn(self) -> None:
        """Adapt to how many of the last drafts the text agrees with."""
        drafts, self._drafts = self._drafts, []
        if not drafts:
            return
        right = 0
        for draft, token in zip(drafts, self._tokens[self._drafted_at :], strict=False):
            if draft != token:
                break
            right += 1
        if right == 0:
            self._resume_at = len(self._tokens) + self._pause
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
            return
        self._pause = 1
        self._limit = min(2 * self._limit, self._most) if right == len(drafts) else right

    def _continuation(self, count: int) -> list[int]:
        """What followed the longest known n-gram; past the end of the text, it repeats itself."""
        text, known = self._tokens, len(self._tokens)
        for size in range(min(LONGEST, known), SHORTEST - 1, -1):
            start = self._after.get(tuple(text[known - size :]))
            if start is not None:
                period = known - start
                return [text[start + i % period] for i in range(count)]
        return []
