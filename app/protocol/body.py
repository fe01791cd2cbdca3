"""Read and check a JSON request body: strict types, refused fields, clear errors."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import Request

from app.errors import ApiError

logger = logging.getLogger("flare.http")

INLINE_BYTES = 128 * 1024
"""Bodies up to this size are parsed on the event loop, where a thread would cost more."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A known field that is not supported. ``neutral``: values that ask for nothing."""

    neutral: tuple[Any, ...] = ()
    reason: str = "is not supported"


class RequestModel(BaseModel):
    """Base of all request bodies: JSON types are not coerced, NaN and Infinity are refused."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, frozen=True)


M = TypeVar("M", bound=RequestModel)


Check = Callable[[Mapping[str, Any]], None]
"""Looks at the fields that the model does not know, before those refused are looked up."""


def parse_body(
    model: type[M], raw: bytes, refused: Mapping[str, Refused], checks: Sequence[Check] = ()
) -> M:
    """Parse ``raw`` as ``model``.

    Raises ApiError (400) for broken JSON and for a field of ``refused`` that asks for something,
    RequestValidationError for a value of the wrong type or range. Unknown fields are ignored and
    their names logged at debug.
    """
    try:
        body = model.model_validate_json(raw)
    except ValidationError as exc:
        raise _explain(exc) from None
    extra = body.model_extra or {}
    for check in checks:
        check(extra)
    for name, rule in refused.items():
        if name in extra:
            refuse(name, extra[name], rule)
    if logger.isEnabledFor(logging.DEBUG):
        unknown = sorted(name for name in extra if name not in refused)
        if unknown:
            logger.debug("ignored unknown fields: %s", ", ".join(map(repr, unknown)))
    return body


def refuse(name: str, value: object, rule: Refused) -> None:
    """Raise ApiError (400, param ``name``) unless ``value`` is null or neutral."""
    if value is None or any(_same(value, neutral) for neutral in rule.neutral):
        return
    raise ApiError(400, f"{name} {rule.reason}.", param=name, code="unsupported_parameter")


def json_body(
    model: type[M], refused: Mapping[str, Refused], checks: Sequence[Check] = ()
) -> Callable[[Request], Coroutine[Any, Any, M]]:
    """A FastAPI dependency that gives the parsed body of a request.

    The content type must be JSON: a browser cannot send that to another origin without asking
    first, so a web page cannot drive a server on the visitor's machine.
    """

    async def read(request: Request) -> M:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json" and not kind.endswith("+json"):
            raise ApiError(400, "Set the Content-Type header to application/json.")
        raw = await request.body()
        if len(raw) <= INLINE_BYTES:
            return parse_body(model, raw, refused, checks)
        return await asyncio.to_thread(parse_body, model, raw, refused, checks)

    return read


def body_schema(model: type[RequestModel]) -> dict[str, Any]:
    """The OpenAPI ``requestBody`` of ``model``, with nested definitions written in place."""
    schema = model.model_json_schema()
    definitions = schema.pop("$defs", {})
    content = {"application/json": {"schema": _inline(schema, definitions)}}
    return {"requestBody": {"required": True, "content": content}}


def _inline(node: Any, definitions: Mapping[str, Any]) -> Any:
    if isinstance(node, list):
        return [_inline(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    reference = node.get("$ref")
    if isinstance(reference, str):
        return _inline(definitions[reference.rpartition("/")[2]], definitions)
    return {key: _inline(value, definitions) for key, value in node.items()}


def _same(value: object, neutral: object) -> bool:
    """Equal as JSON values: true is not 1."""
    if isinstance(value, bool) != isinstance(neutral, bool):
        return False
    return value == neutral


def _explain(exc: ValidationError) -> Exception:
    """The first fault, as the error that the handlers know how to word."""
    errors = exc.errors(include_url=False, include_context=False, include_input=False)
    first = errors[0]
    if first["type"] == "json_invalid":
        detail = str(first["msg"]).removeprefix("Invalid JSON: ")
        return ApiError(400, f"The body is not valid JSON: {detail}.")
    return RequestValidationError([{**first, "loc": ("body", *first["loc"])}])
