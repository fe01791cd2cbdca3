"""uvicorn's HTTP/1.1 connection, made to tell every request on it when the client has gone."""

from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle


class Connection(HttpToolsProtocol):
    """One client connection.

    When a connection is lost, uvicorn tells the request that it read last. If that one is
    pipelined behind another, the other would run on for nobody, and fail when it answers.
    """

    _answering: RequestResponseCycle | None = None

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def connection_lost(self, exc: Exception | None) -> None:
        """Mark the request that is being answered, too, as left."""
        cycle = self._answering
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)
