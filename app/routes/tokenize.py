"""``POST /tokenize`` and ``POST /detokenize``."""

from typing import Annotated

from fastapi import APIRouter, Depends
from starlette.responses import Response

from app.deps import ContextDep
from app.protocol.body import body_schema, json_body
from app.protocol.tokenize import TOKENIZE_REFUSED, DetokenizeRequest, TokenizeRequest
from app.serving.tokens import detokenize, tokenize
from app.serving.wire import json_response

router = APIRouter(tags=["tokens"])

TokenizeBody = Annotated[TokenizeRequest, Depends(json_body(TokenizeRequest, TOKENIZE_REFUSED))]
DetokenizeBody = Annotated[DetokenizeRequest, Depends(json_body(DetokenizeRequest, {}))]


@router.post("/tokenize", openapi_extra=body_schema(TokenizeRequest))
async def create_tokens(context: ContextDep, body: TokenizeBody) -> Response:
    """Token ids and count of a text or of messages, exactly as generation would see them."""
    return json_response(await tokenize(context, body))


@router.post("/detokenize", openapi_extra=body_schema(DetokenizeRequest))
async def create_text(context: ContextDep, body: DetokenizeBody) -> Response:
    """The text of token ids."""
    return json_response(await detokenize(context, body))
