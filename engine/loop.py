"""The engine loop: drain, schedule, plan, execute, update, over and over."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from functools import partial
from time import perf_counter
from typing import Any, ParamSpec, TypeVar

from engine.batch.plan import Launch, Planner
from engine.core.schema import Graph
from engine.device.base import INVALID, Executable
from engine.errors import EngineUnavailableError
from engine.live import Live, ending
from engine.metrics import EngineMetrics
from engine.runtime.results import Drawn, LaunchResult, Scored
from engine.runtime.runner import ModelRunner
from engine.schedule.output import SchedulerOutput
from engine.schedule.scheduler import Scheduler
from engine.schedule.sequence import Sequence
from engine.types import FinishReason
from engine.worker import StepThread

logger = logging.getLogger("flare.engine")

P = ParamSpec("P")
T = TypeVar("T")


class EngineLoop:
    """Serves the live sequences on one event loop; replays run in one worker thread.

    The scheduler and the runner are touched by one thread at a time: by the worker while a step
    executes, else by the event loop. So requests and aborts that arrive meanwhile wait in a list
    for the next step's ``_drain``.
    """

    def __init__(
        self, scheduler: Scheduler, planner: Planner, runner: ModelRunner, metrics: EngineMetrics
    ) -> None:
        self._scheduler = scheduler
        self._planner = planner
        self._runner = runner
        self._metrics = metrics
        self._live: dict[str, Live] = {}
        self._added: list[Live] = []
        self._gone: list[Live] = []
        self._calls: deque[tuple[Callable[[], Any], asyncio.Future[Any]]] = deque()
        self._wake = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._closing = False
        self._failed = False
        self._worker = StepThread("flare-replay")

    @property
    def failed(self) -> bool:
        """Whether a step raised: nothing is served any more."""
        return self._failed

    @property
    def closing(self) -> bool:
        """Whether the loop ended, or will after the current step."""
        return self._closing

    @property
    def live(self) -> int:
        """Sequences being served, running or waiting."""
        return len(self._live)

    def serves(self, request_id: str) -> bool:
        """Whether a sequence with this id is being served."""
        return request_id in self._live

    def add(self, lives: Seq[Live]) -> None:
        """Take new sequences in at the next step."""
        for live in lives:
            self._live[live.id] = live
        self._added += lives
        self._empty.clear()
        self._wake.set()

    def abort(self, request_id: str) -> None:
        """End a sequence now; its blocks are free before the next step."""
        live = self._live.get(request_id)
        if live is not None:
            self._drop(live, FinishReason.ABORT)

    def end_all(self, message: str) -> None:
        """End every sequence with an error."""
        for live in list(self._live.values()):
            self._drop(live, FinishReason.ERROR, message)

    async def wait_empty(self) -> None:
        """Return when no sequence is being served."""
        await self._empty.wait()

    async def between_steps(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call in the worker while no step runs; return what it returns, or raise it.

        Between two steps one such call runs, so that it holds up a step, not the traffic. Raises
        EngineUnavailableError when the loop ends first.
        """
        if self._closing:
            raise EngineUnavailableError("the engine is shutting down")
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._calls.append((partial(call, *args, **kwargs), future))
        self._wake.set()
        return await future

    def adopt(self, graphs: Seq[Graph], executables: Mapping[str, Executable]) -> None:
        """Serve from these graphs alone from the next step on. Called through ``between_steps``."""
        planner = Planner(graphs)
        self._metrics.know(graphs)
        self._runner.adopt(executables)
        self._planner = planner

    async def run(self) -> None:
        """Step while there is work, sleep while there is none, until ``close``.

        Raises what a step raised, after every stream got an error.
        """
        self._worker.start()
        try:
            while not self._closing:
                if self._calls:
                    await self._run_call()
                if self._live or self._gone:
                    await self.step()
                elif not self._calls:
                    self._rest()
                    await self._wake.wait()
                self._wake.clear()
        except Exception:
            self._failed = True
            self.end_all("the engine failed")
            raise
        finally:
            self._closing = True
            self.end_all("the server is shutting down")
            self._refuse_calls()
            self._worker.stop()

    def close(self) -> None:
        """Let ``run`` return after the current step."""
        self._closing = True
        self._wake.set()

    async def _run_call(self) -> None:
        call, future = self._calls.popleft()
        try:
            result = await self._worker.run(call)
        except Exception as error:  # handed to whoever awaits
            if not future.done():
                future.set_exception(error)
        else:
            if not future.done():
                future.set_result(result)

    def _refuse_calls(self) -> None:
        for _, future in self._calls:
            if not future.done():
                future.set_exception(EngineUnavailableError("the engine is shutting down"))
        self._calls.clear()

    async def step(self) -> None:
        """Serve one step."""
        self._drain()
        output = self._scheduler.schedule()
        launches = self._planner.plan(output)
        self._note(output)
        results = await self._execute(output, launches)
        self._update(output, results)

    def _drain(self) -> None:
        added, self._added = self._added, []
        gone, self._gone = self._gone, []
        for live in added:
            self._scheduler.add(live.sequence)
        for live in gone:
            self._scheduler.remove(live.sequence)

    async def _execute(self, output: SchedulerOutput, launches: Seq[Launch]) -> list[LaunchResult]:
        if not launches:
            if self._live:
                raise RuntimeError("sequences are waiting, but none can be scheduled")
            self._runner.apply(output)
            return []
        return await self._worker.run(self._runner.execute, output, launches)

    def _update(self, output: SchedulerOutput, results: Seq[LaunchResult]) -> None:
        self._scheduler.complete(output, sum(result.seconds for result in results))
        now = perf_counter()
        for result in results:
            for scored in result.scored:
                self._add_scores(scored)
            for drawn in result.drawn:
                self._add_token(drawn, now)
        for segment in output.prompts:
            if segment.sequence.left == 0 and not segment.sequence.chunk_left:
                self._end_scoring(segment.sequence, now)
        self._metrics.step(results)

    def _of(self, sequence: Sequence) -> Live | None:
        """The sequence's record, unless it left while the step ran."""
        live = self._live.get(sequence.request.id)
        return live if live is not None and live.sequence is sequence else None

    def _add_scores(self, scored: Scored) -> None:
        live = self._of(scored.sequence)
        if live is None:
            return
        if any(entry.logprob != entry.logprob for entry in scored.logprobs):
            self._poison(live)
            return
        live.scores += scored.logprobs

    def _add_token(self, drawn: Drawn, now: float) -> None:
        live = self._of(drawn.sequence)
        if live is None:
            return
        if drawn.failure is not None:
            logger.error("sequence %s: its grammar cannot go on: %s", live.id, drawn.failure)
            self._drop(live, FinishReason.ERROR, f"the grammar cannot go on: {drawn.failure}")
            return
        if drawn.token == INVALID:
            self._poison(live)
            return
        live.sequence.output.append(drawn.token)
        reason = live.finish_reason()
        complete = drawn.ended and reason is not FinishReason.STOP  # without an end token
        shown = None if complete else reason
        live.stream.push(live.delta((drawn.token,), drawn.logprobs, shown))
        self._metrics.token(now - live.last_token if live.last_token else None, now - live.arrived)
        live.last_token = now
        if complete:
            reason = FinishReason.STOP
            live.stream.push(ending(reason))
        if reason is not None:
            self._finish(live, reason, now)

    def _end_scoring(self, sequence: Sequence, now: float) -> None:
        """A sequence with no token to sample ends when its prompt is computed."""
        live = self._of(sequence)
        if live is not None:
            live.stream.push(live.delta((), None, FinishReason.LENGTH))
            self._finish(live, FinishReason.LENGTH, now)

    def _finish(self, live: Live, reason: FinishReason, now: float) -> None:
        self._scheduler.remove(live.sequence)
        self._metrics.finished(reason)
        self._metrics.end_to_end.observe(now - live.arrived)
        self._forget(live)

    def _drop(self, live: Live, reason: FinishReason, error: str | None = None) -> None:
        live.stream.push(ending(reason, error))
        self._gone.append(live)
        self._metrics.finished(reason)
        self._forget(live)
        self._wake.set()

    def _poison(self, live: Live) -> None:
        """Fail one sequence whose numbers are not finite, and leave nothing of it in the cache."""
        logger.error("sequence %s: the model's output is not finite", live.id)
        live.stream.push(ending(FinishReason.ERROR, "the model's output is not finite"))
        self._runner.scrub(self._scheduler.discard(live.sequence))
        self._metrics.finished(FinishReason.ERROR)
        self._forget(live)

    def _forget(self, live: Live) -> None:
        del self._live[live.id]
        if not self._live:
            self._empty.set()

    def _note(self, output: SchedulerOutput) -> None:
        """Record admissions; a sequence that starts over collects its scores anew."""
        self._metrics.preemptions.inc(output.preempted)
        now = perf_counter()
        for sequence in output.admitted:
            live = self._live[sequence.request.id]
            live.scores.clear()
            if not live.started:
                live.started = now
                self._metrics.admitted(sequence, now - live.arrived)

    def _rest(self) -> None:
        """Idle: give up what ended sequences left, and check the accounts when debugging."""
        self._runner.apply(self._scheduler.schedule())
        if logger.isEnabledFor(logging.DEBUG):
            self._scheduler.check_integrity()
