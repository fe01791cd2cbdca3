"""The policy of a step: decode rows first, then chunks, first come first served."""

from math import inf

from msgspec import Struct, field
from msgspec.structs import replace

from engine.cache.kv import KVCache
from engine.schedule.drafts import DraftLimits, NgramDrafter
from engine.schedule.output import SchedulerOutput, Segment
from engine.schedule.pace import GRAIN, Pace
from engine.schedule.queue import OrderedSequences
from engine.schedule.sequence import NO_SLOT, Sequence

WATERMARK = 0.01
"""Share of the cache that admission leaves free for the growth of running sequences."""


class _Step(Struct):
    """What is left to give in the step being decided, and what was given.

    seconds: what prompt rows may take still, once there are decode rows beside them.
    """

    budget: int
    pace: Pace | None
    seconds: float = inf
    decodes: list[Segment] = field(default_factory=list)
    recomputes: list[Segment] = field(default_factory=list)
    prompts: list[Segment] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)
    preempted: int = 0

    @property
    def full(self) -> bool:
        """Whether no further chunk fits."""
        return self.budget == 0 or self.seconds <= 0.0

    def add(self, sequence: Sequence) -> None:
        """Give the sequence's next rows, as many as the budget allows."""
        generated = sequence.generated
        count = min(sequence.chunk_left, self.budget)
        if self.pace is not None and self.decodes and not generated:
            count = min(count, self.pace.rows(sequence.computed, self.seconds))
            self.seconds -= self.pace.cost(sequence.computed, count)
            if self.seconds < self.pace.cost(0, GRAIN):
                self.seconds = 0.0
        segment = Segment(
            sequence,
            sequence.computed,
            count,
            generated,
            samples=_samples(sequence, sequence.computed + count),
            scores=not generated and sequence.scores_prompt,
        )
        self.budget -= count
        if not generated:
            self.prompts.append(segment)
        else:
            self.recomputes.append(segment)


def _samples(sequence: Sequence, end: int) -> bool:
    return end == sequence.known and sequence.left > 0


class Scheduler:
    """Decides rows and blocks; knows neither graphs nor devices.

    Phase-less: a sequence has tokens known and tokens computed, a step computes some of the
    difference. At most half a step's tokens are decode rows (``max_running``), so chunks always
    progress; all decode rows are in every step, so a decode waits for one step at most.
    """

    def __init__(
        self,
        cache: KVCache,
        max_num_seqs: int,
        max_step_tokens: int,
        pace: Pace | None = None,
        drafts: DraftLimits | None = None,
    ) -> None:
        self._cache = cache
        self._drafts = drafts
        self._pace = pace
        self._step_tokens = max_step_tokens
        self._max_running = min(max_num_seqs, max(1, max_step_tokens // 2))
        self._watermark = max(1, int(cache.capacity * WATERMARK))
        self._waiting = OrderedSequences()
        self._running = OrderedSequences()
        self._slots = list(range(self._max_running - 1, -1, -1))
        self._released: list[int] = []

    @property
    def max_running(self) -> int:
        """Sequences that run at the same time."""
        return self._max_running

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence."""
        self._waiting.add(sequence)

    def remove(self, sequence: Sequence) -> None:
        """End a sequence, wherever it is, and free its blocks and its slot."""
        if sequence.running:
            self._stop(sequence)
        else:
            self._waiting.remove(sequence)

    def discard(self, sequence: Sequence) -> list[int]:
        """End a running sequence whose cache content is not finite; return blocks to scrub."""
        blocks = self._cache.poison(sequence.table)
        self._stop(sequence)
        return blocks

    def schedule(self) -> SchedulerOutput:
        """Decide the next step. Blocks are taken; counters move in ``complete``."""
        step = _Step(self._step_tokens, self._pace)
        if self._pace is not None:
            step.seconds = self._pace.seconds()
        self._add_decodes(step)
        self._add_chunks(step)
        self._admit(step)
        drafts = 0
        if self._drafts is not None and not (step.recomputes or step.prompts):
            drafts = self._add_drafts(step, self._drafts)
        released, self._released = tuple(self._released), []
        return SchedulerOutput(
            tuple(step.decodes),
            tuple(step.recomputes),
            tuple(step.prompts),
            tuple(step.admitted),
            released,
            step.preempted,
            drafts,
        )

    def complete(self, output: SchedulerOutput, seconds: float | None = None) -> None:
        """The step's rows are in the cache, after ``seconds``: move the counters, share blocks."""
        if self._pace is not None and seconds is not None:
            self._pace.observe(output, seconds)
        for segment in output.segments:
            sequence = segment.sequence
            sequence.computed = segment.end - len(segment.drafts)
            if sequence.table.published < len(sequence.table.keys):
                self._cache.publish(sequence.table, sequence.computed)

    def _add_decodes(self, step: _Step) -> None:
        decodes = step.decodes
        for sequence in list(self._running):
            if sequence.running and sequence.decoding and self._make_room(sequence, step):
                decodes.append(Segment(sequence, sequence.computed, 1, True, True))
        step.budget -= len(decodes)

    def _add_drafts(self, step: _Step, limits: DraftLimits) -> int:
        """Let sequences add draft rows to their own, first come first served; return how many."""
        most = min(limits.rows - len(step.decodes), step.budget)
        spare = most
        for index, segment in enumerate(step.decodes):
            if spare < 1:
                break
            drafts = self._propose(segment.sequence, spare, limits)
            if drafts:
                count = segment.count + len(drafts)
                step.decodes[index] = replace(segment, count=count, drafts=tuple(drafts))
                spare -= len(drafts)
        return most - spare

    def _propose(self, sequence: Sequence, most: int, limits: DraftLimits) -> list[int]:
        """Drafts that may all be sampled and whose positions have blocks.

        A grammar's state follows what was drawn: its sequences take a token a step.
        """
        if sequence.request.grammar is not None:
            return []
        if sequence.drafter is None:
            sequence.drafter = NgramDrafter(sequence.prompt.tolist(), limits.tokens)
        drafts = sequence.drafter.propose(sequence.output, min(most, sequence.left - 1))
        tokens = sequence.known + len(drafts)
        return drafts if self._cache.grow(sequence.table, tokens, self._watermark) else []

    def _make_room(self, sequence: Sequence, step: _Step) -> bool:
        """Get the block that a decode row needs; False when it was preempted itself.

        Victims come from the end of the order, so none has rows in this step yet.
        """
        while not self._cache.grow(sequence.table, sequence.known):
            victim = self._running.last
            self._stop(victim)
            victim.computed = 0
            self._waiting.add(victim)
            step.preempted += 1
            if victim is sequence:
                return False
        return True

    def _add_chunks(self, step: _Step) -> None:
        if len(step.decodes) == len(self._running):
            return  # all of them, and most steps
        for sequence in self._running:
            if step.full:
                return
            if not sequence.decoding:
                step.add(sequence)

    def _admit(self, step: _Step) -> None:
        while (
            self._waiting
            and not step.full
            and not step.preempted
            and len(self._running) < self._max_running
        ):
            sequence = self._waiting.first
            keep_free = self._watermark if self._running else 0
            cached = self._cache.admit(sequence.table, sequence.known, keep_free)
            if cached is None:
                return
            self._start(sequence, cached)
            step.admitted.append(sequence)
            step.add(sequence)

    def _start(self, sequence: Sequence, cached: int) -> None:
        self._waiting.remove(sequence)
        self._running.add(sequence)
        sequence.slot = self._slots.pop()
        sequence.computed = cached
        if not sequence.output:
            sequence.cached = cached

    def _stop(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self._cache.release(sequence.table)
        self._released.append(sequence.slot)
        self._slots.append(sequence.slot)
        sequence.slot = NO_SLOT

    def check_integrity(self) -> None:
        """Raise RuntimeError unless blocks and slots belong to exactly the running sequences."""
        self._cache.check_integrity(s.table for s in self._running)
        if any(s.table.blocks or s.running for s in self._waiting):
            raise RuntimeError("a waiting sequence holds a slot or blocks")
        held = [s.slot for s in self._running]
        if sorted(held + self._slots) != list(range(self._max_running)):
            raise RuntimeError(f"slots are lost or held twice: {held} running, {self._slots} free")
