"""One thread that runs steps for an event loop, with as little in between as possible."""

import asyncio
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class StepThread:
    """Runs calls in a thread of its own, one at a time; callers await the results.

    An executor does the same with more hand-overs, which a step of a few milliseconds feels.
    """

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = Thread(target=self._serve, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what the call returns in the thread, or raise what it raises."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def job() -> None:
            try:
                result = call(*args, **kwargs)
            except BaseException as error:  # handed to whoever awaits
                loop.call_soon_threadsafe(_fail, future, error)
            else:
                loop.call_soon_threadsafe(_finish, future, result)

        self._jobs.put(job)
        return await future

    def stop(self) -> None:
        """End the thread after the call it is in, if any, and wait for that."""
        self._jobs.put(None)
        if self._thread.ident is not None:
            self._thread.join()

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


def _finish(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[T], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
