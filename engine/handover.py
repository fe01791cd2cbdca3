"""From one thread to an event loop, in batches."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Handover(Generic[T]):
    """Delivers items on an event loop, in order; ``put`` is called by one thread and never waits.

    A loop that is late gets all that came meanwhile in one turn: it is woken once for it.
    """

    def __init__(self, event_loop: asyncio.AbstractEventLoop, deliver: Callable[[T], None]) -> None:
        self._event_loop = event_loop
        self._deliver = deliver
        self._items: deque[T] = deque()
        self._called = False

    def put(self, item: T) -> None:
        """Have the item delivered. Raises RuntimeError when the event loop is closed."""
        self._items.append(item)
        if not self._called:
            self._called = True
            self._event_loop.call_soon_threadsafe(self._deliver_all)

    def _deliver_all(self) -> None:
        # Cleared first: what is put from here on is taken below, or has the loop called again.
        self._called = False
        while self._items:
            self._deliver(self._items.popleft())
