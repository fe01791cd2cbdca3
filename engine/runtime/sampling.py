"""Sampling after a replay: next tokens, and scores of prompt tokens."""

from collections.abc import Collection, Iterator, Mapping
from collections.abc import Sequence as Seq

import numpy as np

from engine.batch.plan import Launch
from engine.device.base import I32, INVALID, DeviceSampler, SampleBatch, Samples
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
    """Draw the next token of every segment that samples, and write it to the token table.

    A segment with drafts draws at each of its rows, and keeps the tokens up to the first that is
    not the draft of the next row: just those that it would have drawn one by one.
    """
    segments = [segment for segment in launch.segments if segment.samples]
    if not segments:
        return ()
    slots, positions, logits = rows.slots, rows.ends, rows.last_logits
    if len(segments) < len(launch.segments):
        index = [i for i, segment in enumerate(launch.segments) if segment.samples]
        slots, positions, logits = slots[index], positions[index], logits[index]
    if launch.drafts:
        slots, positions, logits = _every_row(rows)
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
    tokens = samples.tokens[: len(slots)]
    # A failed row (INVALID, below 0) ends its sequence: what its entry holds is never read.
    tables.tokens[slots, positions] = np.maximum(tokens, 0)
    logprobs = _logprobs(samples, batch)
    drawn = tokens.tolist()
    verdicts = {} if masks is None else grammars.accept(masks, slots, drawn)
    if launch.drafts:
        return tuple(_verified(sampler, segments, drawn, logprobs, verdicts))
    return tuple(_drawn(segments, drawn, logprobs, verdicts))


def _every_row(rows: Rows) -> tuple[I32, I32, I32]:
    """Slots, positions to draw and logits rows of a launch whose rows all draw."""
    logits = np.arange(rows.first_rows[-1], dtype=np.int32)
    shift = rows.starts + 1 - rows.first_rows[:-1]
    return np.repeat(rows.slots, rows.counts), logits + np.repeat(shift, rows.counts), logits


def _verified(
    sampler: DeviceSampler,
    segments: Collection[Segment],
    tokens: Seq[int],
    logprobs: Mapping[int, TokenLogprobs],
    verdicts: Mapping[int, Verdict],
) -> Iterator[Drawn]:
    """Keep what each segment drew up to its first wrong draft or end token; take the rest back."""
    first, goes_on = 0, Verdict()
    for segment in segments:
        sequence, end = segment.sequence, first + segment.count
        kept = first + _kept(segment, tokens[first:end])
        for i in range(first, kept):
            verdict = verdicts.get(i, goes_on)
            yield Drawn(sequence, tokens[i], logprobs.get(i), verdict.ended, verdict.failure)
        surplus = sum(token != INVALID for token in tokens[kept:end])  # a bad row drew none
        if surplus:
            sampler.rewind(sequence.slot, surplus)
        first = end


def _kept(segment: Segment, tokens: Seq[int]) -> int:
    """How many tokens of a segment stand: each draft before them was drawn, and none ends it."""
    for i, draft in enumerate(segment.drafts):
        if tokens[i] != draft or draft in segment.sequence.stops:
            return i + 1
    return len(tokens)


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
