"""uvicorn's HTTP/1.1 connection, right about clients that leave and about those of HTTP/1.0."""

from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from app.sse import BODY_WRITER


class Connection(HttpToolsProtocol):
    """One client connection.

    When a connection is lost, uvicorn tells the request that it read last. If that one is
    pipelined behind another, the other would run on for nobody, and fail when it answers.
    An HTTP/1.0 client knows no chunks: an answer of unknown length ends with the connection.
    """

    _answering: RequestResponseCycle | None = None

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        extensions: dict[str, Any] = {BODY_WRITER: ChunkWriter(cycle)}
        cycle.scope["extensions"] = extensions
        if cycle.scope["http_version"] == "1.0":
            app = _until_close(app, cycle)
        super()._start_asgi_task(cycle, app)

    def connection_lost(self, exc: Exception | None) -> None:
        """Mark the request that is being answered, too, as left."""
        cycle = self._answering
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)


class ChunkWriter:
    """Sends chunks of one answer without a task; implements ``app.sse.BodyWriter``."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    @property
    def open(self) -> bool:
        """Whether the answer is under way, in chunks, and the client keeps up with it."""
        cycle = self._cycle
        return (
            cycle.response_started
            and cycle.chunked_encoding is True
            and not cycle.flow.write_paused
            and not cycle.disconnected
            and not cycle.response_complete
            and not cycle.transport.is_closing()
        )

    def write(self, body: bytes) -> None:
        """Send a chunk (RFC 9112, 7.1); ``body`` is not empty, for that would be the last one."""
        self._cycle.transport.write(b"%x\r\n%b\r\n" % (len(body), body))


def _until_close(app: ASGIApp, cycle: RequestResponseCycle) -> ASGIApp:
    """``app`` for a client without chunks (RFC 9112, 6.1 and 6.3)."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        unsized = False

        async def sized(message: Message) -> None:
            nonlocal unsized
            if message["type"] == "http.response.start":
                unsized = all(name != b"content-length" for name, _ in message["headers"])
                if unsized:
                    cycle.chunked_encoding = False
                    cycle.keep_alive = False
            elif unsized:
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, sized)

    return serve
