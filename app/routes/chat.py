"""``POST /v1/chat/completions``."""

from starlette.requests import Request
from starlette.responses import Response

from app.deps import get_context
from app.protocol.body import read_body
from app.protocol.chat import CHAT_REFUSED, ChatRequest
from app.routing import JSON, Endpoint
from app.serving.chat import start_chat
from app.serving.respond import respond
from app.sse import EVENT_STREAM


async def create_chat_completion(request: Request) -> Response:
    """Answer a conversation, in one piece or as server-sent events."""
    context = get_context(request)
    body = await read_body(request, ChatRequest, CHAT_REFUSED)
    return await respond(
        request,
        start_chat(context, body),
        stream=bool(body.stream),
        ping_seconds=context.ping_seconds,
    )


ENDPOINTS = (
    Endpoint(
        "POST",
        "/v1/chat/completions",
        create_chat_completion,
        tag="generation",
        body=ChatRequest,
        produces=(JSON, EVENT_STREAM),
    ),
)
