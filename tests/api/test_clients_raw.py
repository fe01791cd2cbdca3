"""Clients without a library: HTTP/1.0, slow readers, broken requests, sudden departures."""

import asyncio
import itertools
import json
import random
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from urllib.parse import urlsplit

import httpx
import pytest

from app.config import ServerConfig
from tests.support.application import Served, application, served
from tests.support.scripted import Behaviour

BIG = {"max_model_len": 4096, "num_blocks": 600, "max_num_seqs": 8}
STREAM = {"model": "scripted", "prompt": "abc", "stream": True, "ignore_eos": True}


async def connect(server: Served) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(server.url)
    return await asyncio.open_connection(parts.hostname, parts.port)


def completion(version: str = "1.1", **fields: object) -> bytes:
    """A whole request for a streamed completion."""
    data = json.dumps({**STREAM, **fields}).encode()
    head = (
        f"POST /v1/completions HTTP/{version}\r\nHost: flare\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


async def close(writer: asyncio.StreamWriter, *, reset: bool = False) -> None:
    if reset:
        writer.transport.abort()
    writer.close()
    (error,) = await asyncio.gather(writer.wait_closed(), return_exceptions=True)
    assert error is None or isinstance(error, OSError)


async def is_idle(server: Served, seconds: float = 3.0) -> bool:
    """Whether nothing runs or waits and no block or slot is held within ``seconds``."""
    parts = server.parts
    for _ in range(int(seconds / 0.02)):
        queued = parts.scheduler.running + parts.scheduler.waiting
        if not (queued or parts.cache.used or parts.device.sampler.slots_in_use):
            await asyncio.sleep(0.02)  # the chain comes to rest: the accounts are its own till then
            parts.scheduler.check_integrity()
            return True
        await asyncio.sleep(0.02)
    return False


async def still_serves(server: Served) -> None:
    async with httpx.AsyncClient(base_url=server.url, timeout=20) as client:
        body = {**STREAM, "stream": False, "max_tokens": 3}
        assert (await client.post("/v1/completions", json=body)).status_code == 200
        assert (await client.get("/health")).status_code == 200


@pytest.mark.parametrize("keep", ["", "Connection: keep-alive\r\n"])
async def test_http_1_0_gets_a_stream_without_chunks_that_ends_with_the_connection(
    keep: str,
) -> None:
    with served(None, Behaviour(delay=0.02), **BIG) as server:
        reader, writer = await connect(server)
        request = completion("1.0", max_tokens=5)
        writer.write(request.replace(b"Host: flare\r\n", b"Host: flare\r\n" + keep.encode()))
        raw = await asyncio.wait_for(reader.read(), 10)
        head, _, body = raw.partition(b"\r\n\r\n")
        assert b"transfer-encoding" not in head.lower()
        assert b"connection: close" in head.lower()
        assert b"content-type: text/event-stream" in head.lower()
        assert body.startswith(b"data: {") and body.endswith(b"data: [DONE]\n\n")
        assert body.count(b"data: ") >= 3  # a busy loop sends tokens together
        await close(writer)


async def test_http_1_0_gets_a_whole_answer_with_its_length() -> None:
    with served(**BIG) as server:
        reader, writer = await connect(server)
        writer.write(completion("1.0", stream=False, max_tokens=3))
        head, _, body = (await asyncio.wait_for(reader.read(), 10)).partition(b"\r\n\r\n")
        assert b"transfer-encoding" not in head.lower()
        assert f"content-length: {len(body)}".encode() in head.lower()
        assert json.loads(body)["choices"]
        await close(writer)


async def test_http_1_0_stream_comes_piece_by_piece_and_leaving_ends_it() -> None:
    with served(None, Behaviour(delay=0.02), **BIG) as server:
        reader, writer = await connect(server)
        writer.write(completion("1.0", max_tokens=2000))
        assert b" 200 " in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
        await asyncio.wait_for(reader.readuntil(b"\n\n"), 5)
        assert server.parts.scheduler.running == 1
        await close(writer)
        assert await is_idle(server)


async def test_every_answer_has_a_request_id_and_streams_are_not_cached() -> None:
    async with application(ServerConfig(api_keys=("k",))) as built:
        key = {"authorization": "Bearer k"}
        post = {**key, "content-type": "application/json"}
        asked = [
            ("GET", "/", {}, None),
            ("GET", "/health", {}, None),
            ("GET", "/v1/models", {}, None),
            ("GET", "/v1/models", key, None),
            ("GET", "/v1/none", key, None),
            ("PUT", "/v1/models", key, None),
            ("POST", "/v1/completions", post, b"{"),
            ("POST", "/v1/completions", post, json.dumps({**STREAM, "max_tokens": 2}).encode()),
            ("POST", "/v1/messages", post, b"{"),
            ("POST", "/v1/responses", post, b"{"),
        ]
        for method, path, headers, content in asked:
            answer = await built.http.request(method, path, headers=headers, content=content)
            assert answer.headers["x-request-id"], (method, path)
            if "event-stream" in answer.headers.get("content-type", ""):
                assert answer.headers["cache-control"] == "no-cache"
                assert answer.headers["x-accel-buffering"] == "no"


async def test_readers_that_do_not_read_hold_nothing_once_they_leave() -> None:
    """Their streams fill the buffers of the sockets; the others go on."""
    with served(None, Behaviour(), **BIG) as server:
        stuck = [await connect(server) for _ in range(4)]
        for _, writer in stuck:
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(completion(max_tokens=3000, logprobs=5))
        await asyncio.sleep(0.5)
        assert server.parts.scheduler.running == 4
        await still_serves(server)
        for _, writer in stuck:
            await close(writer, reset=True)
        assert await is_idle(server)
        await still_serves(server)


async def _leave_at(server: Served, request: bytes, cut: int, seconds: float, reset: bool) -> None:
    """Send ``cut`` bytes of a request, read for ``seconds``, and go."""
    reader, writer = await connect(server)
    writer.write(request[:cut])
    try:
        async with asyncio.timeout(seconds):
            while await reader.read(64):
                pass
    except (TimeoutError, OSError):
        pass
    await close(writer, reset=reset)


async def test_leaving_in_every_phase_leaves_nothing_behind() -> None:
    """Before the request is whole, in the queue, in the prefill, between any two tokens."""
    draw = random.Random(7)
    with served(None, Behaviour(delay=0.002), **BIG) as server:

        async def one(index: int) -> None:
            request = completion(
                prompt="x" * draw.randrange(1, 1500),
                max_tokens=draw.randrange(1, 400),
                n=draw.randrange(1, 4),
                stream=draw.random() < 0.7,
            )
            whole = draw.random() < 0.7
            cut = len(request) if whole else draw.randrange(1, len(request))
            await _leave_at(server, request, cut, draw.random() * 0.4, index % 2 == 0)

        for wave in range(6):
            await asyncio.gather(*(one(index) for index in range(wave * 20, wave * 20 + 20)))
        assert await is_idle(server, 5)
        await still_serves(server)


def mutilated(draw: random.Random) -> bytes:
    """A request with bytes changed, cut out, doubled, or all of them random."""
    data = bytearray(completion(max_tokens=2))
    kind = draw.randrange(4)
    if kind == 0:
        return draw.randbytes(draw.randrange(1, 20_000))
    position = draw.randrange(len(data))
    if kind == 1:
        data[position : position + 8] = draw.randbytes(8)
    elif kind == 2:
        del data[position : position + draw.randrange(1, 40)]
    else:
        data[position:position] = data[: draw.randrange(1, len(data))]
    return bytes(data) + b"\r\n\r\n"


async def test_a_million_bytes_of_nonsense_break_nothing() -> None:
    draw = random.Random(11)
    sent = 0
    with served(None, Behaviour(), **BIG) as server:
        while sent < 1_000_000:
            batch = [mutilated(draw) for _ in range(24)]
            sent += sum(map(len, batch))
            await asyncio.gather(
                *(_leave_at(server, data, len(data), 0.05, draw.random() < 0.5) for data in batch)
            )
        assert await is_idle(server, 5)
        await still_serves(server)
        async with httpx.AsyncClient(base_url=server.url) as client:
            text = (await client.get("/metrics")).text
        assert 'status="500"' not in text


@pytest.fixture
async def crowd() -> AsyncIterator[list[list[int]]]:
    """Which places the tokens of each of 100 concurrent streams took in the order of arrival."""
    options = {**BIG, "max_num_seqs": 32, "num_blocks": 800, "max_queue": 256}
    with served(None, Behaviour(delay=0.002), **options) as server:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=server.url, timeout=60, limits=limits) as client:
            places = itertools.count()

            async def one(index: int) -> list[int]:
                body = {**STREAM, "prompt": f"{index} " * (1 + index % 7), "max_tokens": 24}
                async with client.stream("POST", "/v1/completions", json=body) as answer:
                    assert answer.status_code == 200
                    lines = [line async for line in _numbered(answer, places)]
                assert lines[-2][1] == "data: [DONE]"
                return [place for place, line in lines if '"finish_reason":null' in line]

            yield await asyncio.gather(*(one(index) for index in range(100)))
        assert await is_idle(server)


async def _numbered(
    answer: httpx.Response, places: Iterator[int]
) -> AsyncIterator[tuple[int, str]]:
    """Lines of an answer; one that holds a token takes the next place."""
    async for line in answer.aiter_lines():
        yield (next(places) if '"finish_reason":null' in line else -1), line


async def test_a_hundred_streams_all_complete_and_share_alike(crowd: list[list[int]]) -> None:
    assert min(map(len, crowd)) >= 5
    gaps = [after - before for places in crowd for before, after in pairwise(places)]
    assert max(gaps) < 8 * 32  # of 32 that run, none is passed by over and over
    assert sum(gaps) / len(gaps) < 2 * 32
