"""Send an answer, streamed or whole, for as long as the client is there."""

from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from app.errors import CLIENT_CLOSED
from app.serving.wire import json_response
from app.sse import ClientGone, EventStream, Feed, while_connected


class Answer(Protocol):
    """A running generation, whatever its endpoint."""

    def stream(self) -> Feed: ...

    async def whole(self) -> dict[str, Any]: ...

    def close(self) -> None: ...


A = TypeVar("A", bound=Answer)


async def respond(
    request: Request,
    starting: Coroutine[Any, Any, A],
    *,
    stream: bool,
    ping_seconds: float,
    open_stream: Callable[[A, float], Response] | None = None,
) -> Response:
    """Start an answer and send it. Errors before the first event keep their HTTP status.

    ``open_stream`` makes the streamed response where the events are not of the usual kind.
    """
    try:
        if stream:
            answer = await while_connected(request, starting)
            if open_stream is not None:
                return open_stream(answer, ping_seconds)
            return EventStream(answer.stream(), ping_seconds=ping_seconds, close=answer.close)
        return json_response(await while_connected(request, _whole(starting)))
    except ClientGone:
        return Response(status_code=CLIENT_CLOSED)


async def _whole(starting: Coroutine[Any, Any, Answer]) -> dict[str, Any]:
    answer = await starting
    try:
        return await answer.whole()
    finally:
        answer.close()
