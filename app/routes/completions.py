"""``POST /v1/completions``."""

from starlette.requests import Request
from starlette.responses import Response

from app.deps import get_context
from app.protocol.body import read_body
from app.protocol.completions import COMPLETION_REFUSED, CompletionRequest
from app.routing import JSON, Endpoint
from app.serving.completions import start_completion
from app.serving.respond import respond
from app.sse import EVENT_STREAM


async def create_completion(request: Request) -> Response:
    """Continue one or several prompts, in one piece or as server-sent events."""
    context = get_context(request)
    body = await read_body(request, CompletionRequest, COMPLETION_REFUSED)
    return await respond(
        request,
        start_completion(context, body),
        stream=bool(body.stream),
        ping_seconds=context.ping_seconds,
    )


ENDPOINTS = (
    Endpoint(
        "POST",
        "/v1/completions",
        create_completion,
        tag="generation",
        body=CompletionRequest,
        produces=(JSON, EVENT_STREAM),
    ),
)
