"""The event loop's side of serving: streams and their ends, requests and calls for the chain."""

import asyncio
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from threading import Thread
from typing import Any, ParamSpec, TypeVar

from engine.batch.plan import Planner
from engine.chain import StepChain, StepReport
from engine.core.schema import Graph
from engine.device.base import Executable
from engine.errors import EngineUnavailableError
from engine.futures import fail, finish
from engine.handover import Handover
from engine.live import Live, ending
from engine.metrics import EngineMetrics
from engine.types import FinishReason, TokenDelta

P = ParamSpec("P")
T = TypeVar("T")


class EngineLoop:
    """Serves the live sequences: the chain runs step after step in a thread of its own, and the
    event loop, where all methods are called, pushes what each step gave to the streams.

    Neither waits for the other. A sequence that the event loop ended (an abort, a shutdown) may
    still be in the step that runs: what that gives it is dropped. Metrics are written on the
    event loop alone.
    """

    def __init__(self, chain: StepChain, metrics: EngineMetrics) -> None:
        self._chain = chain
        self._metrics = metrics
        self._live: dict[str, Live] = {}
        self._calls: set[asyncio.Future[Any]] = set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._closing = False
        self._failed = False

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
        if not lives:
            return
        for live in lives:
            self._live[live.id] = live
        self._empty.clear()
        self._chain.add(lives)

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
        """Run a call in the chain's thread while no step runs; return what it returns, or raise it.

        Between two steps one such call runs. Raises EngineUnavailableError when the loop ends
        first.
        """
        if self._closing:
            raise EngineUnavailableError("the engine is shutting down")
        event_loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = event_loop.create_future()
        self._calls.add(future)
        future.add_done_callback(self._calls.discard)

        def job() -> None:
            try:
                result = call(*args, **kwargs)
            except BaseException as error:  # handed to whoever awaits
                event_loop.call_soon_threadsafe(fail, future, error)
            else:
                event_loop.call_soon_threadsafe(finish, future, result)

        self._chain.between(job)
        return await future

    async def adopt(self, graphs: Seq[Graph], executables: Mapping[str, Executable]) -> None:
        """Serve from these graphs alone from the next step on.

        Raises EngineUnavailableError when the loop ends first.
        """
        planner = Planner(graphs)
        self._metrics.know(graphs)
        await self.between_steps(self._chain.adopt, planner, executables)

    async def run(self) -> None:
        """Serve until ``close``.

        Raises what a step raised, after every stream got an error.
        """
        event_loop = asyncio.get_running_loop()
        ended: asyncio.Future[BaseException | None] = event_loop.create_future()
        handover = Handover(event_loop, self._deliver)

        def serve() -> None:
            failure = None
            try:
                self._chain.run(handover.put)
            except BaseException as error:  # raised below
                failure = error
            event_loop.call_soon_threadsafe(finish, ended, failure)

        thread = Thread(target=serve, name="flare-steps", daemon=True)
        thread.start()
        try:
            failure = await ended
            if failure is not None:
                self._failed = True
                self.end_all("the engine failed")
                raise failure
        finally:
            self._closing = True
            self.end_all("the server is shutting down")
            self._refuse_calls()
            self._chain.close()
            thread.join()

    def close(self) -> None:
        """Let ``run`` return after the current step."""
        self._closing = True
        self._chain.close()

    def _refuse_calls(self) -> None:
        for future in self._calls:
            fail(future, EngineUnavailableError("the engine is shutting down"))

    def _deliver(self, report: StepReport) -> None:
        """Push a step's deltas to the streams, and count the step."""
        metrics = self._metrics
        metrics.preemptions.inc(report.preempted)
        for live, queued in report.admitted:
            metrics.admitted(live.sequence, queued)
        for live, delta in report.deltas:
            if not live.ended:
                self._push(live, delta, report.now)
        metrics.step(report.results)

    def _push(self, live: Live, delta: TokenDelta, now: float) -> None:
        live.stream.push(delta)
        if delta.token_ids:
            gap = now - live.last_token if live.last_token else None
            self._metrics.token(gap, now - live.arrived)
            live.last_token = now
        reason = delta.finish_reason
        if reason is not None:
            if reason is not FinishReason.ERROR:
                self._metrics.end_to_end.observe(now - live.arrived)
            self._forget(live, reason)

    def _drop(self, live: Live, reason: FinishReason, error: str | None = None) -> None:
        live.stream.push(ending(reason, error))
        self._chain.remove(live)
        self._forget(live, reason)

    def _forget(self, live: Live, reason: FinishReason) -> None:
        self._metrics.finished(reason)
        live.ended = True
        del self._live[live.id]
        if not self._live:
            self._empty.set()
