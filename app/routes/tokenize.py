"""``POST /tokenize`` and ``POST /detokenize``."""

from starlette.requests import Request
from starlette.responses import Response

from app.deps import get_context
from app.protocol.body import body_reader
from app.protocol.tokenize import TOKENIZE_REFUSED, DetokenizeRequest, TokenizeRequest
from app.routing import Endpoint
from app.serving.tokens import detokenize, tokenize
from app.serving.wire import json_response

read_text = body_reader(TokenizeRequest, TOKENIZE_REFUSED)
read_tokens = body_reader(DetokenizeRequest, {})


async def create_tokens(request: Request) -> Response:
    """Token ids and count of a text or of messages, exactly as generation would see them."""
    context = get_context(request)
    return json_response(await tokenize(context, await read_text(request)))


async def create_text(request: Request) -> Response:
    """The text of token ids."""
    context = get_context(request)
    return json_response(await detokenize(context, await read_tokens(request)))


ENDPOINTS = (
    Endpoint("POST", "/tokenize", create_tokens, tag="tokens", body=TokenizeRequest),
    Endpoint("POST", "/detokenize", create_text, tag="tokens", body=DetokenizeRequest),
)
