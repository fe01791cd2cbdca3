"""``/v1/messages``: Anthropic's way to create a message, and to count its tokens.

The models of this family are many: they are built when the first request comes.
"""

from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from app.deps import get_context
from app.protocol.body import read_body
from app.routing import JSON, Endpoint
from app.serving.respond import respond
from app.sse import EVENT_STREAM

if TYPE_CHECKING:
    from app.protocol.messages import CountRequest, MessageRequest

PATH = "/v1/messages"


async def create_message(request: Request) -> Response:
    """Answer a conversation as Anthropic's API does, in one piece or as server-sent events."""
    from app.protocol.messages import MESSAGE_REFUSED, MessageRequest
    from app.serving.anthropic.create import start_message, stream_opener

    context = get_context(request)
    body = await read_body(request, MessageRequest, MESSAGE_REFUSED)
    return await respond(
        request,
        start_message(context, body),
        stream=bool(body.stream),
        ping_seconds=context.ping_seconds,
        open_stream=stream_opener(request),
    )


async def count_message_tokens(request: Request) -> Response:
    """How many tokens the prompt of a message would have."""
    from app.protocol.messages import COUNT_REFUSED, CountRequest
    from app.serving.anthropic.create import count_tokens

    context = get_context(request)
    body = await read_body(request, CountRequest, COUNT_REFUSED)
    return JSONResponse(await count_tokens(context, body))


def _message_model() -> "type[MessageRequest]":
    from app.protocol.messages import MessageRequest

    return MessageRequest


def _count_model() -> "type[CountRequest]":
    from app.protocol.messages import CountRequest

    return CountRequest


ENDPOINTS = (
    Endpoint(
        "POST",
        PATH,
        create_message,
        tag="generation",
        load_body=_message_model,
        produces=(JSON, EVENT_STREAM),
    ),
    Endpoint(
        "POST", PATH + "/count_tokens", count_message_tokens, tag="tokens", load_body=_count_model
    ),
)
