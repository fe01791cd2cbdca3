"""Read and check a JSON request body: strict types, refused fields, clear errors."""

import asyncio
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

from msgspec import Struct
from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import Request

from app.errors import ApiError

logger = logging.getLogger("flare.http")

INLINE_BYTES = 128 * 1024
"""Bodies up to this size are parsed on the event loop, where a thread would cost more."""


class Refused(Struct, frozen=True):
    """A known field that is not supported. ``neutral``: values that ask for nothing."""

    neutral: tuple[Any, ...] = ()
    reason: str = "is not supported"


class RequestModel(BaseModel):
    """Base of request bodies and of the objects in them.

    JSON types are not coerced, NaN and Infinity are refused, unknown fields are kept aside.
    """

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, frozen=True)


def writable(value: Any) -> Any:
    """``value``, of any JSON type, if it can be written as JSON again.

    Raises ValueError for NaN, Infinity and numbers that overflowed: where a field takes any value,
    nothing else refuses them. The parser bounds how deep a body nests.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("must hold finite numbers only")
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            writable(item)
    return value


JsonObject = Annotated[dict[str, Any], AfterValidator(writable)]
"""An object with any members."""

M = TypeVar("M", bound=RequestModel)


def parse_body(model: type[M], raw: bytes, refused: Mapping[str, Refused]) -> M:
    """Parse ``raw`` as ``model``.

    Raises ApiError (400) for broken JSON, for a value of the wrong type or range and for a field
    of ``refused`` that asks for something. Unknown fields are ignored and their names logged at
    debug.
    """
    try:
        body = model.model_validate_json(raw)
    except ValidationError as exc:
        raise _explain(exc) from None
    extra = body.model_extra or {}
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


async def read_body(request: Request, model: type[M], refused: Mapping[str, Refused]) -> M:
    """Read the body of a request and parse it as ``model``; raises as ``parse_body``.

    The content type must be JSON: a browser cannot send that to another origin without asking
    first, so a web page cannot drive a server on the visitor's machine.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise ApiError(400, "Set the Content-Type header to application/json.")
    raw = await request.body()
    if len(raw) <= INLINE_BYTES:
        return parse_body(model, raw, refused)
    return await asyncio.to_thread(parse_body, model, raw, refused)


def _same(value: object, neutral: object) -> bool:
    """Equal as JSON values: true is not 1."""
    if isinstance(value, bool) != isinstance(neutral, bool):
        return False
    return value == neutral


def _explain(exc: ValidationError) -> ApiError:
    """The first fault, with the path to it."""
    errors = exc.errors(include_url=False, include_context=False, include_input=False)
    first = _telling(errors)
    if first["type"] == "json_invalid":
        detail = str(first["msg"]).removeprefix("Invalid JSON: ")
        return ApiError(400, f"The body is not valid JSON: {detail}.")
    path = [part for part in first["loc"] if not _is_union_tag(part)]
    if not path:
        return ApiError(400, f"The body is not valid: {_sentence(first)}. Send a JSON object.")
    return ApiError(400, f"{_dotted(path)}: {_sentence(first)}.", param=str(path[0]))


def _telling(errors: Sequence[ErrorDetails]) -> ErrorDetails:
    """The first fault or, in a union, that of the member which the value came closest to."""
    first = errors[0]
    path = first["loc"]
    if not path or not _is_union_tag(path[-1]):
        return first
    rivals = [error for error in errors if error["loc"][: len(path) - 1] == path[:-1]]
    return max(rivals, key=lambda e: (not e["type"].endswith("_type"), len(e["loc"])))


def _sentence(error: Mapping[str, Any]) -> str:
    """The validator's words, without its prefix for errors raised by our own validators."""
    return str(error["msg"]).removeprefix("Value error, ").rstrip(".")


def member(field: str, *values: str) -> Discriminator:
    """Tells the members of a union apart by ``field``; each is tagged with its value in brackets.

    The brackets keep the tags out of the paths in error messages.
    """

    def tag(value: object) -> str | None:
        found = value.get(field) if isinstance(value, dict) else getattr(value, field, None)
        return f"[{found}]" if found in values else None

    listed = ", ".join(map(repr, values))
    return Discriminator(
        tag, custom_error_type="member", custom_error_message=f"{field} must be one of {listed}"
    )


def _is_union_tag(part: object) -> bool:
    """Pydantic adds the tried member of a union to the path, as in ``list[str]``."""
    return isinstance(part, str) and (
        "[" in part or part in {"str", "int", "float", "bool", "none"}
    )


def _dotted(path: Sequence[object]) -> str:
    text = str(path[0])
    for part in path[1:]:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text
