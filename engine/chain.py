"""The chain of steps: take in, schedule, plan, execute, settle, over and over, on one thread."""

import logging
from collections import deque
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from functools import partial
from queue import SimpleQueue
from time import perf_counter

from msgspec import Struct

from engine.batch.plan import Launch, Planner
from engine.device.base import INVALID, Executable
from engine.live import Live, ending
from engine.runtime.results import Drawn, LaunchResult, Scored
from engine.runtime.runner import ModelRunner
from engine.schedule.output import SchedulerOutput
from engine.schedule.scheduler import Scheduler
from engine.schedule.sequence import Sequence
from engine.types import FinishReason, TokenDelta

logger = logging.getLogger("flare.engine")


class StepReport(Struct, frozen=True):
    """What a step did, for the event loop.

    deltas: in order; a finish reason ends the sequence. now: when they were there, in
    ``perf_counter`` seconds. admitted: sequences that run for the first time, and the seconds
    that they waited.
    """

    deltas: Seq[tuple[Live, TokenDelta]]
    now: float
    results: Seq[LaunchResult]
    admitted: Seq[tuple[Live, float]]
    preempted: int


class StepChain:
    """Serves sequences step after step in the thread that calls ``run``; no other thread touches
    scheduler, planner and runner.

    ``add``, ``remove``, ``between`` and ``close`` may be called from any thread: they wait in an
    inbox that is emptied before every step and wakes the chain when it sleeps.
    """

    def __init__(self, scheduler: Scheduler, planner: Planner, runner: ModelRunner) -> None:
        self._scheduler = scheduler
        self._planner = planner
        self._runner = runner
        self._live: dict[Sequence, Live] = {}
        self._deltas: list[tuple[Live, TokenDelta]] = []
        self._calls: deque[Callable[[], None]] = deque()
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._closing = False

    def add(self, lives: Seq[Live]) -> None:
        """Take new sequences in before the next step."""
        self._inbox.put(partial(self._add, lives))

    def remove(self, live: Live) -> None:
        """Free what a sequence holds before the next step; nothing if it ended already."""
        self._inbox.put(partial(self._remove, live))

    def between(self, call: Callable[[], None]) -> None:
        """Have a call, which must not raise, made between two steps.

        Between two steps one such call is made, so that it holds up a step, not the traffic.
        """
        self._inbox.put(partial(self._calls.append, call))

    def close(self) -> None:
        """Let ``run`` return after the current step."""
        self._inbox.put(self._close)

    def adopt(self, planner: Planner, executables: Mapping[str, Executable]) -> None:
        """Serve with these alone from the next step on. Called through ``between``."""
        self._runner.adopt(executables)
        self._planner = planner

    def run(self, report: Callable[[StepReport], None]) -> None:
        """Step while there is work, sleep while there is none, until ``close``.

        Calls ``report`` once after every step. Raises what a step raised.
        """
        while not self._closing:
            if self._live:
                report(self.step())
            elif not self._calls:
                self._rest()
                self._inbox.get()()  # sleeps until there is something
            self._take_in()
            if self._calls and not self._closing:
                self._calls.popleft()()
                self._take_in()

    def step(self) -> StepReport:
        """Serve one step."""
        output = self._scheduler.schedule()
        launches = self._planner.plan(output)
        admitted = self._admit(output)
        results = self._execute(output, launches)
        now = perf_counter()
        self._settle(output, results)
        deltas, self._deltas = self._deltas, []
        return StepReport(deltas, now, results, admitted, output.preempted)

    def _take_in(self) -> None:
        while not self._inbox.empty():
            self._inbox.get()()

    def _add(self, lives: Seq[Live]) -> None:
        for live in lives:
            self._live[live.sequence] = live
            self._scheduler.add(live.sequence)

    def _remove(self, live: Live) -> None:
        if self._live.pop(live.sequence, None) is not None:
            self._scheduler.remove(live.sequence)

    def _close(self) -> None:
        self._closing = True

    def _admit(self, output: SchedulerOutput) -> Seq[tuple[Live, float]]:
        """First admissions; a sequence that starts over collects its scores anew."""
        admitted = []
        for sequence in output.admitted:
            live = self._live[sequence]
            live.scores.clear()
            if not live.started:
                live.started = True
                admitted.append((live, perf_counter() - live.arrived))
        return admitted

    def _execute(self, output: SchedulerOutput, launches: Seq[Launch]) -> list[LaunchResult]:
        if not launches:
            raise RuntimeError("sequences are waiting, but none can be scheduled")
        return self._runner.execute(output, launches)

    def _settle(self, output: SchedulerOutput, results: Seq[LaunchResult]) -> None:
        """Give each sequence what the step found, and end those that are complete."""
        self._scheduler.complete(output, sum(result.seconds for result in results))
        for result in results:
            for scored in result.scored:
                self._add_scores(scored)
            for drawn in result.drawn:
                self._add_token(drawn)
        for segment in output.prompts:
            if segment.sequence.left == 0 and not segment.sequence.chunk_left:
                self._end_scoring(segment.sequence)

    def _add_scores(self, scored: Scored) -> None:
        live = self._live.get(scored.sequence)
        if live is None:
            return
        if any(entry.logprob != entry.logprob for entry in scored.logprobs):
            self._poison(live)
            return
        live.scores += scored.logprobs

    def _add_token(self, drawn: Drawn) -> None:
        live = self._live.get(drawn.sequence)
        if live is None:
            return
        if drawn.failure is not None:
            logger.error("sequence %s: its grammar cannot go on: %s", live.id, drawn.failure)
            error = f"the grammar cannot go on: {drawn.failure}"
            self._end(live, ending(FinishReason.ERROR, error))
            return
        if drawn.token == INVALID:
            self._poison(live)
            return
        sequence = live.sequence
        sequence.output.append(drawn.token)
        sequence.computed = sequence.known - 1  # an accepted draft's row, too, is in the cache
        reason = live.finish_reason()
        complete = drawn.ended and reason is not FinishReason.STOP  # without an end token
        delta = live.delta((drawn.token,), drawn.logprobs, None if complete else reason)
        if complete:
            self._deltas.append((live, delta))
            self._end(live, ending(FinishReason.STOP))
        elif reason is None:
            self._deltas.append((live, delta))
        else:
            self._end(live, delta)

    def _end_scoring(self, sequence: Sequence) -> None:
        """A sequence with no token to sample ends when its prompt is computed."""
        live = self._live.get(sequence)
        if live is not None:
            self._end(live, live.delta((), None, FinishReason.LENGTH))

    def _end(self, live: Live, last: TokenDelta) -> None:
        self._deltas.append((live, last))
        self._remove(live)

    def _poison(self, live: Live) -> None:
        """Fail one sequence whose numbers are not finite, and leave nothing of it in the cache."""
        logger.error("sequence %s: the model's output is not finite", live.id)
        error = "the model's output is not finite"
        self._deltas.append((live, ending(FinishReason.ERROR, error)))
        self._runner.scrub(self._scheduler.discard(live.sequence))
        del self._live[live.sequence]

    def _rest(self) -> None:
        """Idle: give up what ended sequences left, and check the accounts when debugging."""
        self._runner.apply(self._scheduler.schedule())
        if logger.isEnabledFor(logging.DEBUG):
            self._scheduler.check_integrity()
