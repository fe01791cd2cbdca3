"""The engine's asyncio face: submit, stream, abort, drain."""

import asyncio
import copy
import logging
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

from engine.cache.kv import KVCache
from engine.errors import (
    EngineUnavailableError,
    LiveSwitchOffError,
    QueueFullError,
    RequestError,
)
from engine.live import Live, ending
from engine.loop import EngineLoop
from engine.metrics import EngineMetrics
from engine.schedule.admission import Admission
from engine.schedule.scheduler import Scheduler
from engine.schedule.sequence import Sequence as Served
from engine.stream import DeltaStream
from engine.types import (
    EngineState,
    FinishReason,
    GenerationRequest,
    ModelInfo,
    TokenStream,
)

if TYPE_CHECKING:  # only engines that can switch need it
    from engine.switch import LiveSwitch

logger = logging.getLogger("flare.engine")


class Engine:
    """One loaded model; implements ``engine.types.EngineClient``.

    Built by ``engine.factory``, started inside an event loop; all its methods are called there.
    ``max_queue``: sequences taken in beyond those that can run at the same time. ``live_switch``:
    None refuses ``switch``.
    """

    def __init__(
        self,
        model: ModelInfo,
        description: Mapping[str, Any],
        admission: Admission,
        scheduler: Scheduler,
        loop: EngineLoop,
        metrics: EngineMetrics,
        max_queue: int,
        live_switch: "LiveSwitch | None" = None,
    ) -> None:
        self._model = model
        self._description = dict(description)
        self._admission = admission
        self._loop = loop
        self._metrics = metrics
        self._capacity = scheduler.max_running + max_queue
        self._arrivals = 0
        self._draining = False
        self._task: asyncio.Task[None] | None = None
        self._live_switch = live_switch
        self._switching: set[asyncio.Task[dict[str, Any]]] = set()
        _watch(metrics, scheduler, loop, admission.cache)

    @property
    def state(self) -> EngineState:
        if self._loop.failed:
            return EngineState.FAILED
        if self._draining or self._loop.closing:
            return EngineState.DRAINING
        return EngineState.LOADING if self._task is None else EngineState.READY

    @property
    def model(self) -> ModelInfo:
        return self._model

    @property
    def metrics(self) -> EngineMetrics:
        """The engine's series; ``metrics.registry`` is what /metrics shows."""
        return self._metrics

    def start(self) -> None:
        """Begin to serve, on the running event loop."""
        if self._task is not None:
            raise RuntimeError("the engine was started before")
        self._task = asyncio.get_running_loop().create_task(self._loop.run(), name="flare-loop")
        self._task.add_done_callback(_log_failure)

    def submit(self, requests: Sequence[GenerationRequest]) -> Sequence[TokenStream]:
        """Queue the requests together, all or none; one stream each, in order.

        Raises EngineUnavailableError unless the engine is ready, QueueFullError when the bounded
        queue cannot take them all, ContextLengthError when one can never fit, RequestError when
        one is malformed or its id is in use.
        """
        if self.state is not EngineState.READY:
            raise EngineUnavailableError(f"the engine is {self.state.value}")
        if self._loop.live + len(requests) > self._capacity:
            raise QueueFullError("too many requests are waiting; try again later")
        ids = [request.id for request in requests]
        if len(set(ids)) < len(ids) or any(map(self._loop.serves, ids)):
            raise RequestError("a request id is in use already")
        now = perf_counter()
        sequences = self._admission.sequences(requests, self._arrivals)
        self._arrivals += len(sequences)
        lives = [Live(sequence, self._stream(sequence), now) for sequence in sequences]
        self._loop.add([live for live in lives if not _needs_nothing(live)])
        return [live.stream for live in lives]

    def _stream(self, sequence: Served) -> DeltaStream:
        return DeltaStream(lambda: self._loop.abort(sequence.request.id))

    def abort(self, request_ids: Sequence[str]) -> None:
        """End these sequences now and free their blocks; unknown ids are ignored."""
        for request_id in request_ids:
            self._loop.abort(request_id)

    def describe(self) -> dict[str, Any]:
        """The ``/v1/config`` object, without ``version``."""
        return copy.deepcopy(self._description)

    async def switch(self, mixed_prefill: bool | None) -> dict[str, Any]:
        """Change the selection between two steps; no request is dropped and no answer changes.

        Returns ``describe()`` as of this switch. A switch that began is completed even when the
        caller is cancelled. Raises LiveSwitchOffError when the engine was loaded without,
        EngineUnavailableError unless it is ready, and SelectionError, CoreError or DeviceError as
        loading does; then nothing has changed.
        """
        if self._live_switch is None:
            raise LiveSwitchOffError("the live switch of the graph selection is off")
        if self.state is not EngineState.READY:
            raise EngineUnavailableError(f"the engine is {self.state.value}")
        task = asyncio.create_task(self._switch(self._live_switch, mixed_prefill))
        self._switching.add(task)
        task.add_done_callback(self._switching.discard)
        return await asyncio.shield(task)

    async def _switch(self, live_switch: "LiveSwitch", requested: bool | None) -> dict[str, Any]:
        self._description.update(await live_switch.to(requested))
        return self.describe()

    async def drain(self, seconds: float) -> None:
        """Refuse new work, let what was taken in finish for up to ``seconds``, end the rest."""
        self._draining = True
        try:
            await asyncio.wait_for(self._loop.wait_empty(), seconds)
        except TimeoutError:
            self._loop.end_all("the server is shutting down")

    async def close(self) -> None:
        """Stop serving: end every stream, and return when the last replay is done."""
        self._draining = True
        self._loop.close()
        self._loop.end_all("the server is shutting down")
        if self._task is not None:
            await asyncio.wait([self._task])


def _log_failure(task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        logger.error("the engine failed", exc_info=error)


def _needs_nothing(live: Live) -> bool:
    """End a sequence that wants neither tokens nor scores at once."""
    sampling = live.sequence.request.sampling
    if sampling.max_tokens > 0 or sampling.prompt_logprobs is not None:
        return False
    live.stream.push(ending(FinishReason.LENGTH))
    return True


def _watch(metrics: EngineMetrics, scheduler: Scheduler, loop: EngineLoop, cache: KVCache) -> None:
    metrics.watch(
        {
            metrics.running: lambda: scheduler.running,
            metrics.waiting: lambda: max(0, loop.live - scheduler.running),
            metrics.kv_used: lambda: cache.used,
            metrics.kv_free: lambda: cache.available,
            metrics.kv_idle: lambda: cache.idle,
        }
    )
