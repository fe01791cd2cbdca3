"""``POST /v1/chat/completions``."""

from typing import Annotated

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from app.deps import ContextDep
from app.protocol.body import body_schema, json_body
from app.protocol.chat import CHAT_REFUSED, ChatRequest, check_tool_choice
from app.serving.chat import start_chat
from app.serving.respond import respond

router = APIRouter(tags=["generation"])

Body = Annotated[ChatRequest, Depends(json_body(ChatRequest, CHAT_REFUSED, [check_tool_choice]))]


@router.post("/v1/chat/completions", openapi_extra=body_schema(ChatRequest))
async def create_chat_completion(request: Request, context: ContextDep, body: Body) -> Response:
    """Answer a conversation, in one piece or as server-sent events."""
    return await respond(
        request,
        start_chat(context, body),
        stream=bool(body.stream),
        ping_seconds=context.ping_seconds,
    )
