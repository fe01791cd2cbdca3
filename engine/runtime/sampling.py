"""Sampling after a replay: next tokens, and scores of prompt tokens."""

from collections.abc import Collection, Iterator, Mapping

import numpy as np

from engine.batch.plan import Launch
from engine.device.base import DeviceSampler, SampleBatch, Samples
from engine.runtime.grammar import SlotGrammars, Verdict
from engine.runtime.prepare import Rows
from engine.runtime.results import Drawn, Scored, token_logprobs
from engine.runtime.tables import SlotTables
from engine.schedule.output import Segment
from engine.types import TokenLogprobs


def draw(
    sampler: DeviceSampler,
    tables: SlotTables,
    grammars: SlotGrammars,
    launch: Launch,
    rows: Rows,
) -> tuple[Drawn, ...]:
    """Draw the next token of every segment that samples, and write it to the token table."""
    segments = [segment for segment in launch.segments if segment.samples]
    if not segments:
        return ()
    slots, positions, logits = rows.slots, rows.ends, rows.last_logits
    if len(segments) < len(launch.segments):
        index = [i for i, segment in enumerate(launch.segments) if segment.samples]
        slots, positions, logits = slots[index], positions[index], logits[index]
    early = positions < tables.stops_from[slots]
    masks = grammars.masks(slots, early)
    if masks is not None:
        early &= masks.rows < 0  # their masks say it
    batch = SampleBatch(
        logits,
        slots,
        positions,
        early.astype(np.uint8),
        tables.top_n[slots],
        None if masks is None else masks.words,
        None if masks is None else masks.rows,
    )
    samples = sampler.sample(batch)
    tokens = samples.tokens[: len(segments)]
    # A failed row (INVALID, below 0) ends its sequence: what its entry holds is never read.
    tables.tokens[slots, positions] = np.maximum(tokens, 0)
    logprobs = _logprobs(samples, batch)
    drawn = tokens.tolist()
    verdicts = {} if masks is None else grammars.accept(masks, slots, drawn)
    return tuple(_drawn(segments, drawn, logprobs, verdicts))


def _drawn(
    segments: Collection[Segment],
    tokens: Collection[int],
    logprobs: Mapping[int, TokenLogprobs],
    verdicts: Mapping[int, Verdict],
) -> Iterator[Drawn]:
    pairs = zip(segments, tokens, strict=True)
    if not logprobs and not verdicts:  # most steps
        for segment, token in pairs:
            yield Drawn(segment.sequence, token, None)
        return
    goes_on = Verdict()
    for i, (segment, token) in enumerate(pairs):
        verdict = verdicts.get(i, goes_on)
        yield Drawn(segment.sequence, token, logprobs.get(i), verdict.ended, verdict.failure)


def _logprobs(samples: Samples, batch: SampleBatch) -> dict[int, TokenLogprobs]:
    """Log probabilities of the rows that asked for them."""
    if batch.top_n.max() < 0:
        return {}
    wanted: list[int] = np.flatnonzero(batch.top_n >= 0).tolist()
    return dict(
        zip(wanted, token_logprobs(samples, wanted, batch.top_n[wanted].tolist()), strict=True)
    )


def score(sampler: DeviceSampler, launch: Launch, rows: Rows) -> tuple[Scored, ...]:
    """Score the prompt tokens that follow the rows of every segment that asks for it."""
    return tuple(
        _score(sampler, segment, int(rows.last_logits[i]) - segment.logits + 1)
        for i, segment in enumerate(launch.segments)
        if segment.scores
    )


def _score(sampler: DeviceSampler, segment: Segment, first: int) -> Scored:
    """Score a segment whose logits rows begin at ``first``; a prompt's last row has no target."""
    sequence = segment.sequence
    targets = sequence.prompt[segment.start + 1 : segment.end + 1]
    count = len(targets)
    top_n = sequence.request.sampling.prompt_logprobs or 0
    logprobs: list[TokenLogprobs] = []
    if count:
        rows = np.arange(first, first + count, dtype=np.int32)
        samples = sampler.score(rows, targets, np.full(count, top_n, np.int32))
        logprobs = token_logprobs(samples, range(count), [top_n] * count)
    return Scored(sequence, tuple(logprobs))
