"""Responses that can be read again and continued: in memory, bounded, each for its key alone."""

from collections import OrderedDict
from typing import Any

from msgspec import Struct

from app.errors import ApiError
from app.serving.wire import compact

MAX_RESPONSES = 4096

Item = dict[str, Any]


class Exchange(Struct, frozen=True, eq=False):
    """The items that one response was given and those that it added; compared by identity."""

    given: tuple[Item, ...]
    added: tuple[Item, ...]

    @property
    def items(self) -> tuple[Item, ...]:
        """All items, in the order of the conversation."""
        return self.given + self.added


class StoredResponse(Struct, frozen=True):
    """A finished response. ``conversation``: all exchanges up to and with its own, oldest first.

    owner: what ``get`` must be asked with; empty where the server asks for no keys.
    """

    owner: bytes
    body: dict[str, Any]
    conversation: tuple[Exchange, ...]

    @property
    def id(self) -> str:
        """The response's id."""
        name: str = self.body["id"]
        return name

    @property
    def input_items(self) -> tuple[Item, ...]:
        """What the model was given: the earlier exchanges, then this response's own input."""
        *earlier, own = self.conversation
        return tuple(item for exchange in earlier for item in exchange.items) + own.given


class ResponseStore:
    """At most ``MAX_RESPONSES`` responses of at most ``max_bytes`` (as JSON); 0 keeps nothing.

    What was used longest ago goes first. An exchange lives as long as a response needs it, so a
    conversation can be continued when its earlier responses have gone; it is counted once.
    """

    def __init__(self, max_bytes: int, max_responses: int = MAX_RESPONSES) -> None:
        self._max_bytes = max_bytes
        self._max_responses = max_responses
        self._responses: OrderedDict[str, StoredResponse] = OrderedDict()
        self._uses: dict[Exchange, int] = {}
        self._sizes: dict[Exchange, int] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._responses)

    @property
    def keeps(self) -> bool:
        """Whether anything is kept at all."""
        return self._max_bytes > 0

    @property
    def size(self) -> int:
        """Bytes of all that is kept."""
        return self._bytes

    def put(self, response: StoredResponse) -> None:
        """Keep a response, unless it alone is larger than all that may be kept."""
        for exchange in response.conversation:
            self._hold(exchange, response)
        self._responses[response.id] = response
        if sum(self._sizes[exchange] for exchange in response.conversation) > self._max_bytes:
            self._drop(response.id)
        while len(self._responses) > self._max_responses or self._bytes > self._max_bytes:
            self._drop(next(iter(self._responses)))

    def get(self, owner: bytes, response_id: str) -> StoredResponse | None:
        """The response, if it is there and belongs to ``owner``; it counts as used now."""
        found = self._responses.get(response_id)
        if found is None or found.owner != owner:
            return None
        self._responses.move_to_end(response_id)
        return found

    def delete(self, owner: bytes, response_id: str) -> bool:
        """Forget a response of ``owner``; False when there is none."""
        if self.get(owner, response_id) is None:
            return False
        self._drop(response_id)
        return True

    def _hold(self, exchange: Exchange, response: StoredResponse) -> None:
        uses = self._uses.get(exchange, 0)
        self._uses[exchange] = uses + 1
        if not uses:
            own = exchange is response.conversation[-1]
            size = len(compact(exchange.given)) + len(
                compact(response.body if own else exchange.added)
            )
            self._sizes[exchange] = size
            self._bytes += size

    def _drop(self, response_id: str) -> None:
        for exchange in self._responses.pop(response_id).conversation:
            self._uses[exchange] -= 1
            if not self._uses[exchange]:
                del self._uses[exchange]
                self._bytes -= self._sizes.pop(exchange)


def not_found(response_id: str) -> ApiError:
    """404 for a response that is not there, or not this key's."""
    return ApiError(404, f"Response with id {response_id[:200]!r} not found.", param="response_id")


def previous_not_found(response_id: str) -> ApiError:
    """404 for a conversation that cannot be continued."""
    return ApiError(
        404,
        f"Previous response with id {response_id[:200]!r} not found.",
        param="previous_response_id",
        code="previous_response_not_found",
    )
