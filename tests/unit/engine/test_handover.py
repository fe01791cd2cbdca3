"""The hand-over from a thread to an event loop: order, one wake-up per batch."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from engine.handover import Handover


async def test_all_that_a_late_loop_missed_comes_in_one_turn_and_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    event_loop = asyncio.get_running_loop()
    woken = 0
    call_soon = event_loop.call_soon_threadsafe

    def counted(callback: Callable[..., object], *args: Any) -> Any:
        nonlocal woken
        woken += 1
        return call_soon(callback, *args)

    monkeypatch.setattr(event_loop, "call_soon_threadsafe", counted)
    got: list[int] = []
    handover = Handover(event_loop, got.append)
    for batch in (range(5), range(5, 9)):
        thread = threading.Thread(target=lambda items=batch: [handover.put(i) for i in items])
        thread.start()
        thread.join()  # the loop is blocked meanwhile
        assert len(got) == batch.start
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert got == list(range(batch.stop))
    assert woken == 2


async def test_nothing_is_lost_between_two_threads_at_full_speed() -> None:
    got: list[int] = []
    done = asyncio.Event()
    count = 20_000

    def deliver(item: int) -> None:
        got.append(item)
        if item == count - 1:
            done.set()

    handover = Handover(asyncio.get_running_loop(), deliver)

    def put_all() -> None:
        for item in range(count):
            handover.put(item)
            if item % 997 == 0:
                time.sleep(0.0001)

    thread = threading.Thread(target=put_all)
    thread.start()
    await asyncio.wait_for(done.wait(), 20)
    thread.join()
    assert got == list(range(count))
