"""The stream of one sequence's deltas, from the engine loop to its reader."""

import asyncio
from collections import deque
from collections.abc import Callable

from engine.types import TokenDelta


class DeltaStream:
    """A single-reader queue on one event loop; implements ``engine.types.TokenStream``.

    The reader iterates, or has deltas given to it (``follow``).

    ``on_close`` is called once when the reader leaves before the last delta was pushed.
    """

    def __init__(self, on_close: Callable[[], None]) -> None:
        self._deltas: deque[TokenDelta] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._ended = False
        self._on_close = on_close
        self._sink: Callable[[TokenDelta], None] | None = None

    def follow(self, sink: Callable[[TokenDelta], None]) -> None:
        """Give every delta to ``sink``, which must not raise, the moment that it is pushed."""
        self._sink = sink
        while self._deltas:
            sink(self._deltas.popleft())

    def push(self, delta: TokenDelta) -> None:
        """Deliver a delta; the reader wakes once. Nothing follows one with a finish reason."""
        if self._ended:
            return
        self._ended = delta.finish_reason is not None
        if self._sink is not None:
            self._sink(delta)
        else:
            self._deltas.append(delta)
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def __aiter__(self) -> "DeltaStream":
        return self

    async def __anext__(self) -> TokenDelta:
        while not self._deltas:
            if self._ended:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._deltas.popleft()

    async def aclose(self) -> None:
        """Leave: what is still to come is dropped, and the sequence aborted if not ended."""
        self._deltas.clear()
        if not self._ended:
            self._ended = True
            self._wake()
            self._on_close()
