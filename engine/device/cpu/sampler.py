"""Sampling on the CPU device: typed parameters in, arrays out of the native sampler."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from flare_cpu import Sampler, ThreadPool
from numpy.typing import NDArray

from engine.device.base import I32, SampleBatch, Samples
from engine.types import MAX_LOGPROBS, SamplingParams

_SEED_MASK = (1 << 64) - 1

Logits = Callable[[], NDArray[np.float32]]
"""Gives the logits [rows, logits_width] of the last replay."""


class CpuSampler:
    """Implements ``engine.device.base.DeviceSampler``. Order of processing: flare/sampler.h."""

    def __init__(
        self,
        pool: ThreadPool,
        isa: str,
        vocab_size: int,
        logits_width: int,
        slots: int,
        logits: Logits,
    ) -> None:
        self._native = Sampler(pool, isa, vocab_size, logits_width, slots)
        self._logits = logits

    def set(
        self,
        slot: int,
        params: SamplingParams,
        stop_ids: Sequence[int],
        prompt_ids: Sequence[int],
        output_ids: Sequence[int],
    ) -> None:
        """Start a slot. Raises ValueError for a parameter or an id out of range."""
        bias = params.logit_bias
        self._native.set(
            slot,
            params.temperature,
            params.top_k,
            params.top_p,
            params.min_p,
            params.presence_penalty,
            params.frequency_penalty,
            params.repetition_penalty,
            params.seed & _SEED_MASK,
            _ints(list(bias)),
            np.array(list(bias.values()), np.float32),
            _ints(stop_ids),
            _ints(prompt_ids),
            _ints(output_ids),
        )

    def clear(self, slot: int) -> None:
        self._native.clear(slot)

    def rewind(self, slot: int, count: int) -> None:
        """Take back the last ``count`` drawn tokens of a slot's history (rejected drafts)."""
        self._native.rewind(slot, count)

    def sample(self, batch: SampleBatch) -> Samples:
        """Draw one token per entry; entries of one slot must be adjacent. Releases the GIL."""
        out = _empty(len(batch.rows))
        self._native.sample(
            self._logits(),
            _ints(batch.rows),
            _ints(batch.slots),
            _ints(batch.positions),
            np.ascontiguousarray(batch.forbid_stop, np.uint8),
            _ints(batch.top_n),
            out.tokens,
            out.logprobs,
            out.top_ids,
            out.top_logprobs,
            batch.masks,
            batch.mask_rows,
        )
        return out

    def score(self, rows: I32, targets: I32, top_n: I32) -> Samples:
        """Log probabilities of ``targets`` at these logits rows. Releases the GIL."""
        out = _empty(len(rows))
        out.tokens[:] = targets
        self._native.score(
            self._logits(),
            _ints(rows),
            out.tokens,
            _ints(top_n),
            out.logprobs,
            out.top_ids,
            out.top_logprobs,
        )
        return out


def _ints(values: Any) -> I32:
    return np.ascontiguousarray(values, np.int32)


def _empty(count: int) -> Samples:
    return Samples(
        np.empty(count, np.int32),
        np.empty(count, np.float32),
        np.empty((count, MAX_LOGPROBS), np.int32),
        np.empty((count, MAX_LOGPROBS), np.float32),
    )
