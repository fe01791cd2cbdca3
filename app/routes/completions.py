"""``POST /v1/completions``."""

from typing import Annotated

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from app.deps import ContextDep
from app.protocol.body import body_schema, json_body
from app.protocol.completions import COMPLETION_REFUSED, CompletionRequest
from app.serving.completions import start_completion
from app.serving.respond import respond

router = APIRouter(tags=["generation"])

Body = Annotated[CompletionRequest, Depends(json_body(CompletionRequest, COMPLETION_REFUSED))]


@router.post("/v1/completions", openapi_extra=body_schema(CompletionRequest))
async def create_completion(request: Request, context: ContextDep, body: Body) -> Response:
    """Continue one or several prompts, in one piece or as server-sent events."""
    return await respond(
        request,
        start_completion(context, body),
        stream=bool(body.stream),
        ping_seconds=context.ping_seconds,
    )
