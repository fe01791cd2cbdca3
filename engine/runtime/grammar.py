"""The grammars of running sequences: masks before a draw, what was drawn after it."""

from collections.abc import Sequence as Seq

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from engine.device.base import I32, INVALID
from engine.schedule.sequence import Sequence
from engine.types import GrammarMatcher

U32 = NDArray[np.uint32]


class Verdict(Struct, frozen=True):
    """What a grammar says of a draw: the text is complete, or why it cannot go on."""

    ended: bool = False
    failure: str | None = None


class Masks(Struct, frozen=True):
    """Masks of one draw. rows: per entry, its row of ``words`` or -1. failures: by entry."""

    words: U32
    rows: I32
    failures: dict[int, str]


class _Held(Struct):
    """A slot's matcher, and its end tokens as masks with their bits cleared.

    not_ending: for positions below min_tokens. not_eos: for the others, when end tokens of the
    model are to be ignored.
    """

    matcher: GrammarMatcher
    not_ending: U32
    not_eos: U32 | None


class SlotGrammars:
    """Matchers by slot. Their state follows the output: a resumed sequence gets a new one."""

    def __init__(self, eos_token_ids: frozenset[int] = frozenset()) -> None:
        self._eos = eos_token_ids
        self._held: dict[int, _Held] = {}

    def start(self, sequence: Sequence) -> None:
        """Follow a sequence that just got its slot, if it has a grammar."""
        grammar = sequence.request.grammar
        if grammar is None:
            return
        ignores = sequence.request.sampling.ignore_eos
        words, eos = grammar.mask_words, self._eos
        self._held[sequence.slot] = _Held(
            grammar.matcher(sequence.output),
            _without(sequence.stops | eos, words),
            _without(eos, words) if ignores else None,
        )

    def stop(self, slot: int) -> None:
        """Forget a slot that was given up."""
        self._held.pop(slot, None)

    def masks(self, slots: I32, early: NDArray[np.bool_]) -> Masks | None:
        """Masks for a draw; None when no entry has a grammar.

        early: entries that may not end yet (min_tokens). Where the grammar allows nothing but the
        end, it ends all the same.
        """
        if not self._held:
            return None
        entries = [i for i, slot in enumerate(slots.tolist()) if slot in self._held]
        if not entries:
            return None
        held = [self._held[slot] for slot in slots[entries].tolist()]
        words = np.zeros((len(entries), max(len(h.not_ending) for h in held)), np.uint32)
        rows = np.full(len(slots), INVALID, np.int32)
        rows[entries] = np.arange(len(entries), dtype=np.int32)
        failures = {}
        for row, (entry, one) in enumerate(zip(entries, held, strict=True)):
            failure = _fill(one, words[row], early=bool(early[entry]))
            if failure is not None:
                failures[entry] = failure
        return Masks(words, rows, failures)

    def accept(self, masks: Masks, slots: I32, tokens: Seq[int]) -> dict[int, Verdict]:
        """Take the drawn tokens in; verdicts by entry, for those with a grammar."""
        verdicts = {}
        for entry in np.flatnonzero(masks.rows >= 0).tolist():
            if entry in masks.failures:
                verdicts[entry] = Verdict(failure=masks.failures[entry])
            elif tokens[entry] != INVALID:
                matcher = self._held[int(slots[entry])].matcher
                matcher.accept(tokens[entry])
                verdicts[entry] = Verdict(ended=matcher.ended)
        return verdicts


def _fill(held: _Held, row: U32, *, early: bool) -> str | None:
    """Fill a row; of a grammar that cannot go on, leave no id."""
    failure = held.matcher.fill(row)
    if failure is not None:
        row[:] = 0
        return failure
    keep = held.not_ending if early else held.not_eos
    if keep is not None:
        going_on = row & keep
        if going_on.any():
            row[:] = going_on
    return None


def _without(ids: frozenset[int], words: int) -> U32:
    mask = np.full(words, 0xFFFFFFFF, np.uint32)
    for token_id in ids:
        if token_id < 32 * words:
            mask[token_id // 32] &= np.uint32(0xFFFFFFFF ^ (1 << token_id % 32))
    return mask
