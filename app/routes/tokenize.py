"""``POST /tokenize`` and ``POST /detokenize``."""

from starlette.requests import Request
from starlette.responses import Response

from app.deps import get_context
from app.protocol.body import read_body
from app.protocol.tokenize import TOKENIZE_REFUSED, DetokenizeRequest, TokenizeRequest
from app.routing import Endpoint
from app.serving.tokens import detokenize, tokenize
from app.serving.wire import json_response


async def create_tokens(request: Request) -> Response:
    """Token ids and count of a text or of messages, exactly as generation would see them."""
    context = get_context(request)
    body = await read_body(request, TokenizeRequest, TOKENIZE_REFUSED)
    return json_response(await tokenize(context, body))


async def create_text(request: Request) -> Response:
    """The text of token ids."""
    context = get_context(request)
    body = await read_body(request, DetokenizeRequest, {})
    return json_response(await detokenize(context, body))


ENDPOINTS = (
    Endpoint("POST", "/tokenize", create_tokens, tag="tokens", body=TokenizeRequest),
    Endpoint("POST", "/detokenize", create_text, tag="tokens", body=DetokenizeRequest),
)
