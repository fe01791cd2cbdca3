"""API keys: every route but probes and playground asks for one when keys are configured."""

from collections.abc import Iterable
from hashlib import sha256
from hmac import compare_digest

from starlette.types import ASGIApp, Receive, Scope, Send

from app.dialect import speaks_anthropic
from app.errors import ApiError, error_response

OPEN_PATHS = frozenset({"/health", "/live", "/", "/playground.css", "/playground.js"})
"""Probes carry no key, and the playground asks for one; all else needs it, metrics and docs too."""


def bearer_token(scope: Scope) -> bytes | None:
    """The token of the Authorization header, or None when it is absent or of another scheme.

    The scheme is case-insensitive and blanks around the token do not count (RFC 9110, 11.4).
    """
    for name, value in scope["headers"]:
        if name == b"authorization":
            scheme, _, token = bytes(value).strip(b" \t").partition(b" ")
            token = token.strip(b" \t")
            return token if scheme.lower() == b"bearer" and token else None
    return None


def request_key(scope: Scope) -> bytes | None:
    """The key of a request: its bearer token or, on Anthropic's routes, its x-api-key header."""
    token = bearer_token(scope)
    if token is None and speaks_anthropic(scope):
        for name, value in scope["headers"]:
            if name == b"x-api-key":
                return bytes(value).strip(b" \t") or None
    return token


def key_owner(scope: Scope, *, keyed: bool) -> bytes:
    """Whose kept data a request may see: a digest of its key; empty where none is asked for."""
    return sha256(request_key(scope) or b"").digest() if keyed else b""


def matches(token: bytes | None, keys: Iterable[str]) -> bool:
    """Whether ``token`` is one of ``keys``; takes the same time for every wrong token."""
    if token is None:
        return False
    found = [compare_digest(token, key.encode("utf-8", "surrogateescape")) for key in keys]
    return any(found)


def unauthorized(token: bytes | None) -> ApiError:
    """401 as OpenAI words it; the key that was sent is not repeated."""
    message = (
        "You didn't provide an API key. Send it as 'Authorization: Bearer KEY'."
        if token is None
        else "Incorrect API key provided."
    )
    headers = {"www-authenticate": "Bearer"}
    return ApiError(401, message, code="invalid_api_key", headers=headers)


class AuthMiddleware:
    """Refuse requests without a key. ``keys`` empty: all pass. The admin key opens all routes."""

    def __init__(self, app: ASGIApp, keys: tuple[str, ...], admin_key: str | None) -> None:
        self._app = app
        self._asks = bool(keys)
        self._keys = keys if admin_key is None else (*keys, admin_key)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._asks and scope["path"] not in OPEN_PATHS:
            token = request_key(scope)
            if not matches(token, self._keys):
                await error_response(unauthorized(token), scope)(scope, receive, send)
                return
        await self._app(scope, receive, send)
