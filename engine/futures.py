"""Settles a future of the event loop, unless it was settled or cancelled before."""

import asyncio
from typing import TypeVar

T = TypeVar("T")


def finish(future: asyncio.Future[T], result: T) -> None:
    """Give the future its result."""
    if not future.done():
        future.set_result(result)


def fail(future: asyncio.Future[T], error: BaseException) -> None:
    """Have whoever awaits the future get the error."""
    if not future.done():
        future.set_exception(error)
