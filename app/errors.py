"""Errors of the HTTP face: one exception, one JSON shape (OpenAI's), handlers for the rest."""

import json
import logging
from collections.abc import Mapping

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from app.dialect import anthropic_error, speaks_anthropic
from engine.errors import (
    ContextLengthError,
    EngineUnavailableError,
    QueueFullError,
    RequestError,
)

logger = logging.getLogger("flare.http")

INTERNAL_MESSAGE = "The server had an error while processing your request."
RETRY_AFTER_SECONDS = "1"
CLIENT_CLOSED = 499
"""Status in the log of a request whose client left (nginx's code); nobody receives it."""


class ApiError(Exception):
    """An answer that is an error: HTTP status and the fields of OpenAI's error object.

    ``param`` names the request field at fault; ``code`` is for programs; ``headers`` are added
    to the answer (for example Retry-After).
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def as_object(self) -> dict[str, str | None]:
        """OpenAI's error object, of valid Unicode also when the message quotes none."""
        return {
            "message": _clean(self.message),
            "type": self.type,
            "param": None if self.param is None else _clean(self.param),
            "code": self.code,
        }


def error_json(error: ApiError) -> str:
    """The error as one line of valid JSON."""
    return json.dumps({"error": error.as_object()}, allow_nan=False)


def error_response(error: ApiError, scope: Scope) -> Response:
    """The whole HTTP answer for ``error``, in the words of the API that ``scope`` speaks."""
    return Response(
        anthropic_json(error, scope) if speaks_anthropic(scope) else error_json(error),
        status_code=error.status,
        headers=error.headers,
        media_type="application/json",
    )


def anthropic_json(error: ApiError, scope: Scope) -> str:
    """The error as Anthropic words it, with the id of the request, as one line of valid JSON."""
    request_id = scope.get("state", {}).get("request_id")
    body = anthropic_error(error.status, _clean(error.message), request_id)
    return json.dumps(body, allow_nan=False)


def to_api_error(exc: BaseException) -> ApiError:
    """What a client is told about ``exc``; anything unforeseen is a 500 without details."""
    if isinstance(exc, ApiError):
        return exc
    if isinstance(exc, HTTPException):
        return _from_http(exc)
    if isinstance(exc, RequestError):
        return _from_request(exc)
    return ApiError(500, INTERNAL_MESSAGE, type="server_error")


def bad_field(name: str, reason: str) -> ApiError:
    """400 for a value that does not fit: the field's name and what is wrong with it."""
    return ApiError(400, f"{name} {reason}.", param=name)


def unavailable(message: str) -> ApiError:
    """503 with Retry-After: loading, draining or broken."""
    return ApiError(
        503,
        message,
        type="server_error",
        code="engine_unavailable",
        headers={"retry-after": RETRY_AFTER_SECONDS},
    )


def install_error_handlers(app: Starlette) -> None:
    """Answer every error of ``app`` in OpenAI's shape. Unforeseen ones are logged in full."""
    for kind in (ApiError, HTTPException, RequestError):
        app.add_exception_handler(kind, _answer)
    app.add_exception_handler(Exception, answer_unforeseen)


async def answer_unforeseen(request: Request, exc: Exception) -> Response:
    """500 with a generic message; the traceback goes to the log only."""
    logger.error("unforeseen error in %s %s", request.method, route_of(request), exc_info=exc)
    return error_response(to_api_error(exc), request.scope)


def route_of(request: Request) -> str:
    """The route's template, never the raw path: safe in logs and metric labels."""
    route = request.scope.get("route")
    return getattr(route, "path", "unmatched")


async def _answer(request: Request, exc: Exception) -> Response:
    return error_response(to_api_error(exc), request.scope)


def _clean(text: str) -> str:
    """Replace lone surrogates, which are no Unicode text, by question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _from_http(exc: HTTPException) -> ApiError:
    headers = exc.headers or {}
    if exc.status_code == 404:
        return ApiError(404, "There is nothing at this URL.", code="unknown_url", headers=headers)
    if exc.status_code == 405:
        message = "This URL does not take this method."
        return ApiError(405, message, code="method_not_allowed", headers=headers)
    if exc.status_code >= 500:
        return ApiError(exc.status_code, INTERNAL_MESSAGE, type="server_error", headers=headers)
    return ApiError(exc.status_code, str(exc.detail), headers=headers)


def _from_request(exc: RequestError) -> ApiError:
    message = str(exc)
    if isinstance(exc, ContextLengthError):
        return ApiError(400, message, code=exc.code)
    if isinstance(exc, QueueFullError):
        headers = {"retry-after": RETRY_AFTER_SECONDS}
        return ApiError(429, message, type="rate_limit_error", code=exc.code, headers=headers)
    if isinstance(exc, EngineUnavailableError):
        return unavailable(message)
    return ApiError(400, message, code=exc.code)
