"""What the process can do now: loading, ready, draining or failed."""

from typing import TYPE_CHECKING

from app.errors import ApiError, unavailable
from engine.types import EngineState

if TYPE_CHECKING:  # the command line needs the service before these are imported
    from prometheus_client import CollectorRegistry

    from app.serving.context import ServingContext

REASONS = {
    EngineState.LOADING: "The server is loading the model.",
    EngineState.DRAINING: "The server is shutting down.",
    EngineState.FAILED: "The engine has failed; the server's log says why.",
}


class Service:
    """The one answer to "can a request be served?", shared by routes, probes and signals.

    Moves loading -> ready -> draining, or to failed; all calls come from the event loop.
    """

    def __init__(self) -> None:
        self._context: ServingContext | None = None
        self._registry: CollectorRegistry | None = None
        self._error: Exception | None = None
        self._draining = False

    @property
    def state(self) -> EngineState:
        if self._error is not None:
            return EngineState.FAILED
        if self._draining:
            return EngineState.DRAINING
        return EngineState.LOADING if self._context is None else self._context.engine.state

    @property
    def error(self) -> Exception | None:
        """Why loading failed."""
        return self._error

    @property
    def loaded(self) -> "ServingContext | None":
        """The context once loading is over, whatever the state is now."""
        return self._context

    @property
    def context(self) -> "ServingContext":
        """What routes serve with. Raises ApiError (503) unless the state is ready."""
        refusal = self.refusal()
        if refusal is not None or self._context is None:
            raise refusal or unavailable(REASONS[EngineState.LOADING])
        return self._context

    @property
    def engine_metrics(self) -> "CollectorRegistry | None":
        """The engine's series, once it is loaded."""
        return self._registry

    def refusal(self) -> ApiError | None:
        """Why no request is served now; None when the server is ready."""
        state = self.state
        return None if state is EngineState.READY else unavailable(REASONS[state])

    def become_ready(self, context: "ServingContext", metrics: "CollectorRegistry") -> None:
        self._context = context
        self._registry = metrics

    def fail(self, error: Exception) -> None:
        self._error = error

    def begin_drain(self) -> None:
        self._draining = True
