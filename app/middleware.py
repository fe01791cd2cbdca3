"""Pure ASGI middleware: request id and access record, error boundary, readiness, body limit."""

import asyncio
import contextlib
import logging
import re
import secrets
import time

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.dialect import speaks_anthropic
from app.errors import CLIENT_CLOSED, answer_unforeseen, error_response, route_of
from app.observe import HttpMetrics
from app.routing import needs_engine
from app.service import Service
from app.sse import disconnected

logger = logging.getLogger("flare.http")

REQUEST_ID = "x-request-id"
ANTHROPIC_REQUEST_ID = "request-id"
_CLIENT_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
GONE_SECONDS = 1.0
"""How long after a failed send the server may take to see that the client has gone."""
DISCARD_BYTES = 256 * 1024 * 1024
DISCARD_SECONDS = 10.0
"""How much of a refused body is read and thrown away, so that the client sees the answer."""


class RecordMiddleware:
    """Give every answer a request id; count and, at debug, log it."""

    def __init__(self, app: ASGIApp, metrics: HttpMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(Headers(scope=scope).get(REQUEST_ID))
        scope.setdefault("state", {})["request_id"] = request_id
        started = time.perf_counter()
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers[REQUEST_ID] = request_id
                if speaks_anthropic(scope):
                    headers[ANTHROPIC_REQUEST_ID] = request_id
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        finally:
            self._record(scope, status, time.perf_counter() - started)

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        route = route_of(Request(scope))
        self._metrics.count(scope["method"], route, status)
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug(
                "%s %r %d in %.1f ms",
                scope["method"],
                scope["path"],
                status,
                seconds * 1e3,
                extra={"request_id": scope["state"]["request_id"]},
            )


class BoundaryMiddleware:
    """Turn an unforeseen error into a 500 here, inside CORS, so that browsers can read it.

    A client that leaves is none: neither while its body is read nor while it is answered.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def watch(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            try:
                await send(message)
            except (OSError, RuntimeError):
                # A closed transport refuses data before the server is told of the loss.
                if not await _has_left(receive):
                    raise

        try:
            await self._app(scope, receive, watch)
        except ClientDisconnect:
            await Response(status_code=CLIENT_CLOSED)(scope, receive, send)
        except Exception as exc:
            if started:
                raise  # the answer has begun: the server closes the connection
            response = await answer_unforeseen(Request(scope), exc)
            await response(scope, receive, watch)


class ReadinessMiddleware:
    """503 with Retry-After on serving routes until the model is loaded, and from a drain on."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and needs_engine(scope["path"]):
            refusal = self._service.refusal()
            if refusal is not None:
                await error_response(refusal, scope)(scope, receive, send)
                return
        await self._app(scope, receive, send)


class BodyTooLarge(HTTPException):
    """Raised from ``receive`` when a body passes the limit."""

    def __init__(self, limit: int) -> None:
        detail = f"The request body is larger than the limit of {limit} bytes."
        super().__init__(413, detail, {"connection": "close"})


class BodyLimitMiddleware:
    """413 as soon as a body passes ``limit`` bytes, announced or counted while reading.

    A refused body is then read and thrown away, within bounds: closing at once would reset the
    connection, and the client would lose the answer.
    """

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = _LimitedBody(receive, send, self._limit, Headers(scope=scope))
        await self._app(scope, body.receive, body.send)


class _LimitedBody:
    """One request's body on its way in, and the answer that may have to wait for its end."""

    def __init__(self, receive: Receive, send: Send, limit: int, headers: Headers) -> None:
        self._receive = receive
        self._send = send
        self._limit = limit
        length = headers.get("content-length", "0")
        self._refused = length.isascii() and length.isdigit() and int(length[:19]) > limit
        self._waits = "expect" in headers  # the client sends nothing before it is told to
        self._read = 0
        self._ended = False

    async def receive(self) -> Message:
        if self._refused:
            raise BodyTooLarge(self._limit)
        message = await self._next()
        if self._read > self._limit:
            self._refused = True
            raise BodyTooLarge(self._limit)
        return message

    async def send(self, message: Message) -> None:
        last = message["type"] == "http.response.body" and not message.get("more_body", False)
        if last and self._refused and not self._ended and not self._waits:
            await self._send({**message, "more_body": True})
            await self._discard()
            message = {"type": "http.response.body", "body": b""}
        await self._send(message)

    async def _next(self) -> Message:
        message = await self._receive()
        self._read += len(message.get("body", b""))
        self._ended = message["type"] != "http.request" or not message.get("more_body", False)
        return message

    async def _discard(self) -> None:
        until = self._read + DISCARD_BYTES
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DISCARD_SECONDS):
                while not self._ended and self._read < until:
                    await self._next()


async def _has_left(receive: Receive) -> bool:
    """Whether the server tells within ``GONE_SECONDS`` that the client has gone."""
    try:
        async with asyncio.timeout(GONE_SECONDS):
            await disconnected(receive)
    except TimeoutError:
        return False
    return True


def _request_id(given: str | None) -> str:
    """The client's own id when it is plain text of a sane length, else a new one."""
    if given is not None and _CLIENT_ID.fullmatch(given):
        return given
    return "req_" + secrets.token_hex(12)
