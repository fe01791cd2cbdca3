"""Streamed answers: sent from the callback that brings them, or by the task when they cannot be."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from app.errors import ApiError
from app.sse import BODY_WRITER, EventStream


class Feed:
    """Events that the test makes arrive; ``None`` ends them, an error breaks them."""

    first = b""

    def __init__(self) -> None:
        self.finished = False
        self._items: list[bytes | Exception | None] = []
        self._at_once: Callable[[], bool] | None = None
        self._event = asyncio.Event()

    def offer(self, at_once: Callable[[], bool] | None) -> None:
        self._at_once = at_once

    async def wait(self) -> None:
        self._event.clear()
        if not self._items:
            await self._event.wait()

    def take(self) -> bytes:
        items, self._items = self._items, []
        self.finished = None in items
        for item in items:
            if isinstance(item, Exception):
                raise item
        return b"".join(item for item in items if isinstance(item, bytes))

    def arrive(self, item: bytes | Exception | None) -> None:
        self._items.append(item)
        if self._at_once is None or not self._at_once():
            self._event.set()


class Client:
    """The server's side of a connection: what the task sent ("task") and what the callback did."""

    def __init__(self) -> None:
        self.open = False
        self.got: list[tuple[str, bytes]] = []
        self.ended = False
        self.gone = asyncio.Event()

    def write(self, body: bytes) -> None:
        assert self.open
        self.got.append(("callback", body))

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.open = True
            return
        if message["body"]:
            self.got.append(("task", message["body"]))
        self.ended = not message.get("more_body", False)

    async def receive(self) -> Any:
        await self.gone.wait()
        return {"type": "http.disconnect"}


async def turns() -> None:
    for _ in range(8):
        await asyncio.sleep(0)


def stream(feed: Feed, client: Client, closed: list[int], *, direct: bool = True) -> Any:
    answer = EventStream(feed, ping_seconds=0, close=lambda: closed.append(1))
    extensions = {BODY_WRITER: client} if direct else {}
    scope = {"type": "http", "path": "/v1/completions", "headers": [], "extensions": extensions}
    return asyncio.ensure_future(answer(scope, client.receive, client.send))


async def test_the_first_event_starts_the_answer_and_later_ones_wake_no_task() -> None:
    feed, client, closed = Feed(), Client(), list[int]()
    task = stream(feed, client, closed)
    await turns()
    feed.arrive(b"a")
    await turns()
    feed.arrive(b"b")
    feed.arrive(b"c")
    assert client.got == [("task", b"a"), ("callback", b"b"), ("callback", b"c")]
    feed.arrive(None)
    await task
    assert client.ended
    assert closed == [1]


async def test_what_cannot_be_sent_at_once_is_sent_by_the_task_in_order() -> None:
    feed, client, closed = Feed(), Client(), list[int]()
    task = stream(feed, client, closed)
    await turns()
    feed.arrive(b"a")
    await turns()
    client.open = False
    feed.arrive(b"b")
    feed.arrive(b"c")
    client.open = True  # and before the task had its turn:
    feed.arrive(b"d")
    await turns()
    feed.arrive(b"e")
    assert b"".join(data for _, data in client.got) == b"abcde"
    assert client.got[-1] == ("callback", b"e")
    feed.arrive(None)
    await task
    assert client.ended


async def test_a_server_without_the_extension_is_sent_everything_by_the_task() -> None:
    feed, client, closed = Feed(), Client(), list[int]()
    task = stream(feed, client, closed, direct=False)
    for item in (b"a", b"b", None):
        await turns()
        feed.arrive(item)
    await task
    assert client.got == [("task", b"a"), ("task", b"b")]
    assert client.ended


@pytest.mark.parametrize("started", [False, True])
async def test_an_error_is_told_however_it_arrives(started: bool) -> None:
    feed, client, closed = Feed(), Client(), list[int]()
    task = stream(feed, client, closed)
    await turns()
    if started:
        feed.arrive(b"a")
        await turns()
    feed.arrive(ApiError(500, "gave up", type="server_error"))
    await task
    assert b"gave up" in client.got[-1][1]
    assert client.got[-1][1].startswith(b"data: ") is started
    assert client.ended
    assert closed == [1]


async def test_nothing_is_sent_to_a_client_that_left() -> None:
    feed, client, closed = Feed(), Client(), list[int]()
    task = stream(feed, client, closed)
    await turns()
    feed.arrive(b"a")
    await turns()
    client.gone.set()
    await task
    feed.arrive(b"b")
    await turns()
    assert client.got == [("task", b"a")]
    assert closed == [1]
