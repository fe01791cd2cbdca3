"""Server-sent events as a pure-ASGI response: true status, keep-alives, abort on disconnect."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.errors import ApiError, error_json, error_response, to_api_error
from engine.errors import RequestError

logger = logging.getLogger("flare.http")

T = TypeVar("T")

EVENT_STREAM = "text/event-stream"
DONE = "data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
BODY_WRITER = "flare.body_writer"
"""The ASGI extension of servers that have a ``BodyWriter``: its name in ``scope``."""
_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


def error_event(error: ApiError) -> bytes:
    """The event that ends a broken stream of the OpenAI kind."""
    return b"data: " + error_json(error).encode() + b"\n\n"


class ClientGone(Exception):
    """The client closed the connection before its answer was ready."""


async def disconnected(receive: Receive) -> None:
    """Return when the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``, which is cancelled when the client goes.

    The body of ``request`` must have been read. Raises ClientGone.
    """
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(disconnected(request.receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        await _cancel(task, watch)


class Feed(Protocol):
    """A streamed answer in ready-made events; ``app.serving.answer_stream`` is the real one."""

    @property
    def first(self) -> bytes:
        """Events that wait for nothing; may be empty."""
        ...

    @property
    def finished(self) -> bool:
        """True when the last event was taken."""
        ...

    async def wait(self) -> None:
        """Return when there is something to take."""
        ...

    def take(self) -> bytes:
        """The events since the last time; may be empty. Raises what ended the answer early."""
        ...

    def offer(self, at_once: Callable[[], bool] | None) -> None:
        """Have ``at_once`` called when there is something to take; False: ``wait`` shall tell."""
        ...


class BodyWriter(Protocol):
    """A server's way to send a part of a body from a callback; ``app.connection`` has one."""

    @property
    def open(self) -> bool:
        """Whether a part can be sent now and nobody is waited for."""
        ...

    def write(self, body: bytes) -> None:
        """Send a part that is not the last. ``open`` was asked for just before."""
        ...


class EventStream(Response):
    """Streams ready-made events.

    An error before the first event is a plain JSON answer with its own status, as long as the
    silence has not been broken by a keep-alive; later it is what ``failure`` makes of it, one
    ``error`` event unless told otherwise, and the end. After ``ping_seconds`` without an event
    ``keep_alive`` is sent (0: never). ``close`` is called once, however the answer ends.

    Where the server has a ``BodyWriter``, what arrives while the client keeps up is sent from the
    callback that brings it, so that no task is woken for a token.
    """

    media_type = EVENT_STREAM

    def __init__(
        self,
        feed: Feed,
        *,
        ping_seconds: float,
        close: Callable[[], None],
        failure: Callable[[ApiError], bytes] = error_event,
        keep_alive: bytes = KEEP_ALIVE,
    ) -> None:
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._feed = feed
        self._ping_seconds = ping_seconds
        self._close = close
        self._failure = failure
        self._keep_alive = keep_alive

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        serve = asyncio.ensure_future(self._serve(scope, receive, send))
        watch = asyncio.ensure_future(disconnected(receive))
        try:
            await asyncio.wait({serve, watch}, return_when=asyncio.FIRST_COMPLETED)
            if serve.done():
                serve.result()
        finally:
            self._feed.offer(None)
            await _cancel(serve, watch)
            self._close()

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        writer = _Writer(send, self.status_code, self.raw_headers, self._keep_alive)
        pings = asyncio.ensure_future(writer.keep_alive(self._ping_seconds))
        try:
            await self._send(writer, scope.get("extensions", {}).get(BODY_WRITER))
        except Exception as exc:
            # Every failure has to become an answer here: the status line may be gone already.
            error = to_api_error(exc)
            if not isinstance(exc, ApiError | RequestError):
                logger.error("unforeseen error in a streamed answer", exc_info=exc)
            if not writer.started:
                await _cancel(pings)
                await error_response(error, scope)(scope, receive, send)
                return
            await writer.write(self._failure(error))
        finally:
            await _cancel(pings)
        await writer.end()

    async def _send(self, writer: "_Writer", body: BodyWriter | None) -> None:
        """Send all events of the feed. Raises what it raises."""
        feed = self._feed
        direct = None if body is None else _Direct(feed, writer, body)
        if feed.first:
            await writer.write(feed.first)
        while not feed.finished:
            if direct is None or not writer.started:
                await feed.wait()
            else:
                await direct.run()
            if not feed.finished and (data := feed.take()):
                await writer.write(data)


class _Direct:
    """Sends what a feed brings at once, for as long as nothing is in the way."""

    def __init__(self, feed: Feed, writer: "_Writer", body: BodyWriter) -> None:
        self._feed = feed
        self._writer = writer
        self._body = body
        self._error: Exception | None = None

    async def run(self) -> None:
        """Send until the feed has finished, or something is left that cannot be sent at once.

        Raises what the feed raises.
        """
        self._feed.offer(self._at_once)
        try:
            await self._feed.wait()
        finally:
            self._feed.offer(None)
        if self._error is not None:
            raise self._error

    def _at_once(self) -> bool:
        """Send what is there; False when the task has to go on."""
        if self._error is not None or not self._body.open:
            return False
        try:
            data = self._feed.take()
            if data:
                self._writer.touch()
                self._body.write(data)
        except Exception as exc:  # raised in the task
            self._error = exc
            return False
        return not self._feed.finished


class _Writer:
    """Sends the headers with the first bytes, and comments during silence."""

    def __init__(
        self, send: Send, status: int, headers: list[tuple[bytes, bytes]], keep_alive: bytes
    ) -> None:
        self.started = False
        self._send = send
        self._start = {"type": "http.response.start", "status": status, "headers": headers}
        self._keep_alive = keep_alive
        self._time = asyncio.get_running_loop().time
        self._last = self._time()

    async def write(self, data: bytes, *, more: bool = True) -> None:
        """Send bytes. Each call hands its message on before it waits, so calls never mix."""
        if not self.started:
            self.started = True
            await self._send(self._start)
        self._last = self._time()
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    def touch(self) -> None:
        """Something was sent otherwise: the silence begins anew."""
        self._last = self._time()

    async def end(self) -> None:
        await self.write(b"", more=False)

    async def keep_alive(self, seconds: float) -> None:
        """Break every silence of ``seconds``, for ever; 0 sends nothing."""
        while seconds > 0:
            wait = self._last + seconds - self._time()
            if wait > 0:
                await asyncio.sleep(wait)
            else:
                await self.write(self._keep_alive)


async def _cancel(*tasks: asyncio.Future[Any]) -> None:
    """Cancel the tasks and wait for their end; their results are not wanted any more."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
