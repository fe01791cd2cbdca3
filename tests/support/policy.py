"""Drive the scheduler without a device: sequences, and a step that pretends to compute."""

from dataclasses import dataclass, field

import numpy as np

from engine.cache.kv import KVCache
from engine.schedule.output import SchedulerOutput, Segment
from engine.schedule.pace import Pace
from engine.schedule.scheduler import Scheduler
from engine.schedule.sequence import Sequence
from engine.types import GenerationRequest, SamplingParams


@dataclass(slots=True)
class Policy:
    """A scheduler with its cache, and the bookkeeping of a run."""

    num_blocks: int = 33
    block_size: int = 4
    max_num_seqs: int = 4
    max_step_tokens: int = 16
    prefix_cache: bool = True
    pace: Pace | None = None
    cache: KVCache = field(init=False)
    scheduler: Scheduler = field(init=False)
    live: list[Sequence] = field(default_factory=list)
    arrivals: int = 0

    def __post_init__(self) -> None:
        self.cache = KVCache(self.num_blocks, self.block_size, self.prefix_cache)
        self.scheduler = Scheduler(self.cache, self.max_num_seqs, self.max_step_tokens, self.pace)

    def add(
        self, prompt: list[int], max_tokens: int, priority: int = 0, scores: bool = False
    ) -> Sequence:
        """Queue a request."""
        self.arrivals += 1
        sampling = SamplingParams(max_tokens, prompt_logprobs=0 if scores else None)
        request = GenerationRequest(str(self.arrivals), tuple(prompt), sampling, priority=priority)
        ids = np.array(prompt, np.int32)
        table = self.cache.table(self.cache.keys(ids, None), len(ids), lookup=not scores)
        sequence = Sequence(request, self.arrivals, ids, table)
        self.scheduler.add(sequence)
        self.live.append(sequence)
        return sequence

    def finish(self, output: SchedulerOutput, seconds: float | None = None) -> None:
        """Pretend that the step ran: one token for each segment that samples."""
        self.scheduler.complete(output, seconds)
        for segment in output.segments:
            if segment.samples:
                segment.sequence.output.append(1)
            if segment.sequence.left == 0 and segment.sequence.computed >= len(
                segment.sequence.prompt
            ):
                self.end(segment.sequence)

    def end(self, sequence: Sequence) -> None:
        """Remove a sequence, finished or aborted."""
        self.scheduler.remove(sequence)
        self.live.remove(sequence)

    def step(self) -> SchedulerOutput:
        """Schedule a step and finish it."""
        output = self.scheduler.schedule()
        self.finish(output)
        return output


def rows(segment: Segment) -> tuple[Sequence, int, int]:
    """A segment in short: whose rows, from where, how many."""
    return (segment.sequence, segment.start, segment.count)
