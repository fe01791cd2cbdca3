"""Reading kept responses: one of them, and a page of its input items."""

from typing import Any

from starlette.datastructures import QueryParams

from app.errors import ApiError, bad_field
from app.protocol.responses import MESSAGE_LOGPROBS
from app.serving.responses.store import StoredResponse

MAX_PAGE, PAGE = 100, 20


def check_reading(query: QueryParams) -> None:
    """Refuse options of reading that are not supported. Raises ApiError (400) naming one."""
    if query.get("stream", "false").lower() not in ("false", "0"):
        raise _unsupported("stream", "of a finished response is not supported")
    for name in ("starting_after", "include_obfuscation"):
        if query.get(name, "false").lower() != "false":
            raise _unsupported(name, "is only for streams")
    _check_include(query)


def page(stored: StoredResponse, query: QueryParams) -> dict[str, Any]:
    """A list object of input items: ``order`` asc or desc (default), ``limit``, ``after``."""
    _check_include(query)
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise bad_field("order", "must be 'asc' or 'desc'")
    items = list(stored.input_items)
    if order == "desc":
        items.reverse()
    first = _after(items, query.get("after"))
    limit = _limit(query.get("limit"))
    shown = items[first : first + limit]
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": first + limit < len(items),
    }


def _check_include(query: QueryParams) -> None:
    """Log probabilities are shown wherever they were asked for; nothing else can be included."""
    for name in ("include", "include[]"):
        for value in query.getlist(name):
            if value != MESSAGE_LOGPROBS:
                raise _unsupported("include", f"with {value[:60]!r} is not supported")


def _limit(text: str | None) -> int:
    if text is None:
        return PAGE
    if not (text.isascii() and text.isdecimal() and len(text) < 4 and 1 <= int(text) <= MAX_PAGE):
        raise bad_field("limit", f"must be a whole number from 1 to {MAX_PAGE}")
    return int(text)


def _after(items: list[dict[str, Any]], after: str | None) -> int:
    """The index behind the item ``after``."""
    if after is None:
        return 0
    for index, item in enumerate(items):
        if item["id"] == after:
            return index + 1
    raise bad_field("after", "names no item of this response")


def _unsupported(name: str, reason: str) -> ApiError:
    return ApiError(400, f"{name} {reason}.", param=name, code="unsupported_parameter")
