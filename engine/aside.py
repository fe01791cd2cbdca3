"""Runs a call beside the steps of an engine, in such a way that these hardly wait for it."""

import asyncio
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from threading import Thread, get_native_id
from typing import ParamSpec, TypeVar

from engine.futures import fail, finish

P = ParamSpec("P")
T = TypeVar("T")

NICENESS = 10
"""Of the thread: a replay wants every processor, but a switch must come about even while replays
take them all (setpriority(2), on Linux by thread)."""
TURN = 0.0005
"""Seconds that the call may hold the interpreter lock while a step waits for it (usually 0.005)."""


async def aside(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what the call returns in a thread of low priority, or raise what it raises.

    A call that began runs to its end. One at a time: the interpreter's switch interval is shortened
    meanwhile.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def job() -> None:
        if sys.platform == "linux":
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, get_native_id(), NICENESS)
        try:
            result = call(*args, **kwargs)
        except BaseException as error:  # handed to whoever awaits
            loop.call_soon_threadsafe(fail, future, error)
        else:
            loop.call_soon_threadsafe(finish, future, result)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(min(TURN, interval))
    try:
        Thread(target=job, name="flare-aside", daemon=True).start()
        return await future
    finally:
        sys.setswitchinterval(interval)
