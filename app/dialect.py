"""Whose API a request speaks, and how Anthropic's routes word an error."""

from typing import Any

from starlette.types import Scope

_VERSION_HEADER = b"anthropic-version"
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def is_anthropic_path(path: str) -> bool:
    """Whether a path is of the route family that always answers in Anthropic's shapes."""
    return path == "/v1/messages" or path.startswith("/v1/messages/")


def speaks_anthropic(scope: Scope) -> bool:
    """Whether the answer is for an Anthropic client.

    That is every request below ``/v1/messages``, and one for ``/v1/models`` with the header that
    Anthropic's clients always send; no other route has both shapes.
    """
    path: str = scope["path"]
    if is_anthropic_path(path):
        return True
    if path != "/v1/models" and not path.startswith("/v1/models/"):
        return False
    return any(name == _VERSION_HEADER for name, _ in scope["headers"])


def anthropic_error(status: int, message: str, request_id: str | None) -> dict[str, Any]:
    """The body of an error, as Anthropic words it."""
    kind = _TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return {
        "type": "error",
        "error": {"type": kind, "message": message},
        "request_id": request_id,
    }
