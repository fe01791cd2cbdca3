"""What the scheduler decides for one step."""

from msgspec import Struct

from engine.schedule.sequence import Sequence


class Segment(Struct, frozen=True):
    """A run of rows of one sequence and one role.

    start: first position. samples: the last row draws the next token. scores: every row's logits
    are wanted (prompt log probabilities). drafts: guesses of the tokens behind the first row, one
    row each; every row of such a segment draws.
    """

    sequence: Sequence
    start: int
    count: int
    generated: bool
    samples: bool
    scores: bool = False
    drafts: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        return self.start + self.count

    @property
    def logits(self) -> int:
        """Rows whose logits are wanted: the last ones of the segment."""
        if self.scores:
            return self.count
        return 1 + len(self.drafts) if self.samples else 0


class SchedulerOutput(Struct, frozen=True):
    """One step. Each sequence has at most one segment.

    decodes: one generated row each, and its drafts, which only a step without chunks has.
    recomputes: several generated rows (after a preemption). prompts: prompt chunks. admitted:
    sequences that got a slot in this step. released: slots given up since the last step (before
    ``admitted`` took theirs). preempted: how many sequences. drafts: draft rows.
    """

    decodes: tuple[Segment, ...] = ()
    recomputes: tuple[Segment, ...] = ()
    prompts: tuple[Segment, ...] = ()
    admitted: tuple[Sequence, ...] = ()
    released: tuple[int, ...] = ()
    preempted: int = 0
    drafts: int = 0

    @property
    def segments(self) -> tuple[Segment, ...]:
        """All segments, generated rows first."""
        return self.decodes + self.recomputes + self.prompts
