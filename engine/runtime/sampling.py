"""Sampling after a replay: next tokens, and scores of prompt tokens."""

import numpy as np

from engine.batch.plan import Launch
from engine.device.base import DeviceSampler, SampleBatch
from engine.runtime.results import INVALID, Drawn, Scored, token_logprobs
from engine.runtime.tables import SlotTables
from engine.schedule.output import Segment

NO_LOGPROBS = -1


def draw(sampler: DeviceSampler, tables: SlotTables, launch: Launch) -> tuple[Drawn, ...]:
    """Draw the next token of every segment that samples, and write it to the token table."""
    segments: list[Segment] = []
    rows: list[int] = []
    last = -1
    for segment in launch.segments:
        last += segment.logits
        if segment.samples:
            segments.append(segment)
            rows.append(last)
    if not segments:
        return ()
    batch = _batch(segments, rows)
    samples = sampler.sample(batch)
    tokens: list[int] = samples.tokens[: len(segments)].tolist()
    _remember(tables, batch, samples.tokens[: len(segments)])
    wanted = [i for i, s in enumerate(segments) if _top_n(s) != NO_LOGPROBS]
    logprobs = dict(
        zip(
            wanted,
            token_logprobs(samples, wanted, [_top_n(segments[i]) for i in wanted]),
            strict=True,
        )
    )
    return tuple(
        Drawn(segment.sequence, token, logprobs.get(i))
        for i, (segment, token) in enumerate(zip(segments, tokens, strict=True))
    )


def _top_n(segment: Segment) -> int:
    wanted = segment.sequence.request.sampling.logprobs
    return NO_LOGPROBS if wanted is None else wanted


def _batch(segments: list[Segment], rows: list[int]) -> SampleBatch:
    table = np.array(
        [
            (
                s.sequence.slot,
                s.end,
                len(s.sequence.output) < s.sequence.request.sampling.min_tokens,
                _top_n(s),
            )
            for s in segments
        ],
        np.int32,
    )
    return SampleBatch(
        np.array(rows, np.int32),
        np.ascontiguousarray(table[:, 0]),
        np.ascontiguousarray(table[:, 1]),
        table[:, 2].astype(np.uint8),
        np.ascontiguousarray(table[:, 3]),
    )


def _remember(tables: SlotTables, batch: SampleBatch, tokens: np.ndarray) -> None:
    """Write drawn tokens at their positions; a failed row's sequence ends, its entry is moot."""
    tables.tokens[batch.slots, batch.positions] = np.where(tokens == INVALID, 0, tokens)


def score(sampler: DeviceSampler, launch: Launch) -> tuple[Scored, ...]:
    """Score the prompt tokens that follow the rows of every segment that asks for it."""
    scored: list[Scored] = []
    first = 0
    for segment in launch.segments:
        if segment.scores:
            prompt = segment.sequence.prompt
            targets = prompt[segment.start + 1 : segment.end + 1]
            if len(targets):
                scored.append(_score(sampler, segment, first, targets))
        first += segment.logits
    return tuple(scored)


def _score(sampler: DeviceSampler, segment: Segment, first: int, targets: np.ndarray) -> Scored:
    count = len(targets)
    top_n = segment.sequence.request.sampling.prompt_logprobs or 0
    rows = np.arange(first, first + count, dtype=np.int32)
    samples = sampler.score(rows, targets, np.full(count, top_n, np.int32))
    logprobs = token_logprobs(samples, range(count), [top_n] * count)
    return Scored(segment.sequence, segment.start + 1, tuple(logprobs))
