"""The sampler in numpy: the oracle of the native one (cpu_ext/include/flare/sampler.h).

Order for one row: raw logits (their log-softmax is what is reported) -> repetition penalty over
prompt and output (Keskar et al. 2019) -> frequency and presence penalties over the output ->
bias -> end tokens and ids outside a mask forbidden -> temperature -> top_k -> top_p -> min_p ->
draw. The draw inverts the cumulative distribution, ids ascending. Ties go to the lowest id.
"""

from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from engine.device.base import I32, INVALID, SampleBatch, Samples
from engine.device.reference.philox import uniform
from engine.types import MAX_LOGPROBS, SamplingParams

F32 = NDArray[np.float32]
Allowed = NDArray[np.bool_]


class _Slot(Struct):
    params: SamplingParams
    stop_ids: tuple[int, ...]
    prompt_ids: tuple[int, ...]
    output_ids: list[int] = field(default_factory=list)


class ReferenceSampler:
    """Implements ``engine.device.base.DeviceSampler`` over the logits that ``logits`` returns."""

    def __init__(
        self, vocab_size: int, slots: int, logits: Callable[[], NDArray[np.float32]]
    ) -> None:
        self._vocab_size = vocab_size
        self._slots: list[_Slot | None] = [None] * slots
        self._logits = logits

    def set(
        self,
        slot: int,
        params: SamplingParams,
        stop_ids: Sequence[int],
        prompt_ids: Sequence[int],
        output_ids: Sequence[int],
    ) -> None:
        """Start a slot with its parameters and history."""
        self._slots[slot] = _Slot(params, tuple(stop_ids), tuple(prompt_ids), list(output_ids))

    def clear(self, slot: int) -> None:
        """Free a slot."""
        self._slots[slot] = None

    def rewind(self, slot: int, count: int) -> None:
        """Take back the last ``count`` drawn tokens of a slot's history."""
        held = self._slots[slot]
        if held is not None and count:
            del held.output_ids[-count:]

    def sample(self, batch: SampleBatch) -> Samples:
        """Draw one token per row and add it to its slot's history."""
        samples = _empty(len(batch.rows))
        logits = self._logits()
        for i, row in enumerate(batch.rows):
            slot = self._slots[batch.slots[i]]
            if slot is None:
                raise ValueError(f"sampler slot {batch.slots[i]} is not set")
            raw = logits[row, : self._vocab_size]
            allowed = _allowed(batch, i, self._vocab_size)
            forbid_stop = bool(batch.forbid_stop[i])
            token = self._token(raw, slot, forbid_stop, allowed, int(batch.positions[i]))
            samples.tokens[i] = token
            if token != INVALID:
                slot.output_ids.append(token)
                _report(samples, i, raw, token, int(batch.top_n[i]))
        return samples

    def score(self, rows: I32, targets: I32, top_n: I32) -> Samples:
        """Return log probabilities of ``targets`` at these logits rows, from raw logits."""
        samples = _empty(len(rows))
        logits = self._logits()
        for i, row in enumerate(rows):
            samples.tokens[i] = targets[i]
            raw = logits[row, : self._vocab_size]
            _report(samples, i, raw, int(targets[i]), int(top_n[i]))
        return samples

    @staticmethod
    def _token(
        raw: F32, slot: _Slot, forbid_stop: bool, allowed: Allowed | None, position: int
    ) -> int:
        if not np.isfinite(raw).all():
            return INVALID
        z = _processed(raw, slot, forbid_stop)
        if allowed is not None:
            z[~allowed] = -np.inf
        if z.max() == -np.inf:
            return INVALID
        return _draw(z, slot.params, position)


def _empty(rows: int) -> Samples:
    return Samples(
        np.zeros(rows, np.int32),
        np.full(rows, np.nan, np.float32),
        np.full((rows, MAX_LOGPROBS), -1, np.int32),
        np.full((rows, MAX_LOGPROBS), np.nan, np.float32),
    )


def _allowed(batch: SampleBatch, i: int, vocab_size: int) -> Allowed | None:
    """The ids that an entry may draw; None: all."""
    if batch.masks is None or batch.mask_rows is None or batch.mask_rows[i] < 0:
        return None
    words = batch.masks[batch.mask_rows[i]]
    ids = np.arange(vocab_size)
    allowed: Allowed = (words[ids // 32] >> (ids % 32) & 1) == 1
    return allowed


def _processed(raw: F32, slot: _Slot, forbid_stop: bool) -> F32:
    """Return the logits after penalties, bias and forbidden end tokens."""
    params = slot.params
    z = raw.copy()
    seen = sorted(set(slot.prompt_ids) | set(slot.output_ids))
    if params.repetition_penalty != 1 and seen:
        values, penalty = z[seen], np.float32(params.repetition_penalty)
        z[seen] = np.where(values > 0, values / penalty, values * penalty)
    if slot.output_ids:
        ids, counts = np.unique(slot.output_ids, return_counts=True)
        z[ids] -= (params.frequency_penalty * counts + params.presence_penalty).astype(np.float32)
    for token, bias in params.logit_bias.items():
        z[token] += bias
    if forbid_stop:
        z[list(slot.stop_ids)] = -np.inf
    return z


def _draw(z: F32, params: SamplingParams, position: int) -> int:
    if params.temperature == 0:
        return int(np.argmax(z))
    order = np.lexsort((np.arange(len(z)), -z))  # best first, ties by id
    best = z[order].astype(np.float64)
    weights = np.exp((best - best[0]) / params.temperature)
    kept = len(order) if params.top_k == 0 else min(params.top_k, len(order))
    if params.top_p < 1:
        mass = np.cumsum(weights[:kept])
        kept = min(kept, int(np.searchsorted(mass, params.top_p * mass[-1])) + 1)
    if params.min_p > 0:
        kept = min(kept, int(np.count_nonzero(weights >= params.min_p)))
    by_id = np.argsort(order[:kept])
    mass = np.cumsum(weights[:kept][by_id])
    index = int(np.searchsorted(mass, uniform(params.seed, position) * mass[-1], side="right"))
    return int(order[by_id[min(index, kept - 1)]])


def _report(samples: Samples, i: int, raw: F32, token: int, top_n: int) -> None:
    """Fill a row's log probabilities; ``top_n`` below 0 wants none."""
    if top_n < 0:
        return
    logprobs = raw.astype(np.float64) - raw.max()
    logprobs = logprobs - np.log(np.exp(logprobs).sum())
    samples.logprobs[i] = logprobs[token]
    best = np.lexsort((np.arange(len(raw)), -raw))[:top_n]
    samples.top_ids[i, : len(best)] = best
    samples.top_logprobs[i, : len(best)] = logprobs[best]
