"""A sampler in numpy, with the device sampler's interface and order of processing."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from engine.device.base import I32, SampleBatch, Samples
from engine.types import SamplingParams

F32 = NDArray[np.float32]
MAX_TOP = 20
FAILED = -1


@dataclass(slots=True)
class _Slot:
    params: SamplingParams
    stops: list[int]
    prompt: frozenset[int]
    output: list[int] = field(default_factory=list)


class NumpySampler:
    """Penalties, bias, min_tokens, temperature, top-k, top-p, min-p; draws by (seed, position).

    logits: [rows, width] of the last replay; ids from ``vocab_size`` on are never drawn or shown.
    """

    def __init__(self, vocab_size: int) -> None:
        self.logits: F32 = np.zeros((0, vocab_size), np.float32)
        self._vocab = vocab_size
        self._slots: dict[int, _Slot] = {}

    @property
    def slots_in_use(self) -> frozenset[int]:
        return frozenset(self._slots)

    def set(
        self,
        slot: int,
        params: SamplingParams,
        stop_ids: Sequence[int],
        prompt_ids: Sequence[int],
        output_ids: Sequence[int],
    ) -> None:
        if slot in self._slots:
            raise AssertionError(f"slot {slot} is in use")
        self._slots[slot] = _Slot(params, list(stop_ids), frozenset(prompt_ids), list(output_ids))

    def clear(self, slot: int) -> None:
        del self._slots[slot]

    def sample(self, batch: SampleBatch) -> Samples:
        samples = _empty(len(batch.rows))
        for i, row in enumerate(batch.rows.tolist()):
            logits = self.logits[row, : self._vocab]
            slot = self._slots[int(batch.slots[i])]
            if not np.isfinite(logits).all():
                samples.tokens[i] = FAILED
                continue
            token = _draw(logits, slot, int(batch.positions[i]), bool(batch.forbid_stop[i]))
            slot.output.append(token)
            samples.tokens[i] = token
            if batch.top_n[i] >= 0:
                _report(samples, i, logits, token)
        return samples

    def score(self, rows: I32, targets: I32, top_n: I32) -> Samples:
        samples = _empty(len(rows))
        for i, (row, target) in enumerate(zip(rows.tolist(), targets.tolist(), strict=True)):
            samples.tokens[i] = target
            _report(samples, i, self.logits[row, : self._vocab], target)
        return samples


def _empty(rows: int) -> Samples:
    return Samples(
        np.zeros(rows, np.int32),
        np.zeros(rows, np.float32),
        np.zeros((rows, MAX_TOP), np.int32),
        np.zeros((rows, MAX_TOP), np.float32),
    )


def _report(samples: Samples, i: int, logits: F32, token: int) -> None:
    logprobs = logits - logits.max()
    logprobs = logprobs - np.log(np.exp(logprobs).sum())
    best = np.argsort(-logprobs, kind="stable")[:MAX_TOP]
    samples.logprobs[i] = logprobs[token]
    samples.top_ids[i, : len(best)] = best
    samples.top_logprobs[i, : len(best)] = logprobs[best]


def _draw(raw: F32, slot: _Slot, position: int, forbid_stop: bool) -> int:
    params = slot.params
    logits = _processed(raw, slot, forbid_stop)
    if params.temperature == 0:
        return int(np.argmax(logits))
    order = np.argsort(-logits, kind="stable")
    scaled = (logits[order] - logits.max()) / params.temperature
    probabilities = np.exp(scaled) / np.exp(scaled).sum()
    if params.top_k:
        probabilities[params.top_k :] = 0
    before = np.cumsum(probabilities) - probabilities
    probabilities[before >= params.top_p * probabilities.sum()] = 0
    probabilities[probabilities < params.min_p * probabilities[0]] = 0
    key = (params.seed & (2**64 - 1)) << 64 | position
    uniform = np.random.Generator(np.random.Philox(key=key)).random()
    cumulative = np.cumsum(probabilities / probabilities.sum())
    index = int(np.searchsorted(cumulative, uniform, side="right"))
    return int(order[min(index, len(order) - 1)])


def _processed(raw: F32, slot: _Slot, forbid_stop: bool) -> NDArray[np.float64]:
    params = slot.params
    logits = raw.astype(np.float64)
    counts = Counter(slot.output)
    for token in slot.prompt | counts.keys():
        factor = params.repetition_penalty
        logits[token] = logits[token] / factor if logits[token] > 0 else logits[token] * factor
    for token, count in counts.items():
        logits[token] -= params.presence_penalty + params.frequency_penalty * count
    for token, bias in params.logit_bias.items():
        logits[token] += bias
    if forbid_stop:
        logits[slot.stops] = -np.inf
    return logits
