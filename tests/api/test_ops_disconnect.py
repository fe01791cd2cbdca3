"""A client that goes away ends its request, streaming or not, through the whole middleware."""

import asyncio
import json
import logging
from urllib.parse import urlsplit

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send

from app.config import ServerConfig
from app.middleware import BoundaryMiddleware
from tests.support.application import Served, served
from tests.support.scripted import Behaviour

ABORTED = 'flare_requests_finished_total{reason="abort"} '
CONFIG = ServerConfig(api_keys=("k",), cors_origins=("https://a.example",), ping_seconds=1)


async def send_and_leave(server: Served, body: dict[str, object]) -> None:
    """Send a completion request over a plain socket, and close it while the request runs."""
    parts = urlsplit(server.url)
    _, writer = await asyncio.open_connection(parts.hostname, parts.port)
    data = json.dumps({"model": "scripted", **body}).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: flare\r\nAuthorization: Bearer k\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    writer.write(head.encode() + data)
    await writer.drain()
    await until_running(server)
    writer.close()
    await writer.wait_closed()


async def until_running(server: Served) -> None:
    for _ in range(500):
        if server.parts.scheduler.running == 1:
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the request does not run")


async def aborted(server: Served) -> int:
    """How many requests were aborted, once nothing runs and no block is held."""
    scheduler, cache = server.parts.scheduler, server.parts.cache
    for _ in range(500):
        if scheduler.running + scheduler.waiting == 0 and cache.used == 0:
            break
        await asyncio.sleep(0.02)
    assert scheduler.running + scheduler.waiting + cache.used == 0
    async with httpx.AsyncClient(headers={"Authorization": "Bearer k"}) as client:
        text = (await client.get(server.url + "/metrics")).text
    (line,) = [x for x in text.splitlines() if x.startswith(ABORTED)]
    return int(float(line.removeprefix(ABORTED)))


@pytest.mark.parametrize("stream", [False, True])
async def test_leaving_while_tokens_come(stream: bool) -> None:
    with served(CONFIG, Behaviour(delay=0.02), max_model_len=2048, num_blocks=200) as server:
        body = {"prompt": "abc", "max_tokens": 2000, "stream": stream, "ignore_eos": True}
        await send_and_leave(server, body)
        assert await aborted(server) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_leaving_during_a_long_prefill(stream: bool) -> None:
    with served(CONFIG, Behaviour(delay=0.05), max_model_len=4096, num_blocks=300) as server:
        body = {"prompt": "x" * 4000, "max_tokens": 90, "stream": stream, "ignore_eos": True}
        await send_and_leave(server, body)
        assert await aborted(server) == 1


async def test_leaving_with_a_request_pipelined_behind() -> None:
    body = {"model": "scripted", "prompt": "abc", "max_tokens": 1500, "ignore_eos": True}
    with served(CONFIG, Behaviour(delay=0.02), max_model_len=2048, num_blocks=200) as server:
        parts = urlsplit(server.url)
        _, writer = await asyncio.open_connection(parts.hostname, parts.port)
        data = json.dumps(body).encode()
        head = (
            "POST /v1/completions HTTP/1.1\r\nHost: flare\r\nAuthorization: Bearer k\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        writer.write((head.encode() + data) * 2)
        await writer.drain()
        await until_running(server)
        writer.close()
        await writer.wait_closed()
        assert await aborted(server) == 1


async def test_leaving_while_the_body_is_sent_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), served(CONFIG) as server:
        parts = urlsplit(server.url)
        _, writer = await asyncio.open_connection(parts.hostname, parts.port)
        head = "POST /v1/completions HTTP/1.1\r\nHost: flare\r\nAuthorization: Bearer k\r\n"
        kind = "Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
        writer.write((head + kind + "{").encode())
        await writer.drain()
        await asyncio.sleep(0.2)
        writer.close()
        await writer.wait_closed()
        async with httpx.AsyncClient(headers={"Authorization": "Bearer k"}) as client:
            for _ in range(100):
                text = (await client.get(server.url + "/metrics")).text
                if 'status="499"' in text:
                    break
                await asyncio.sleep(0.02)
        assert 'status="499"' in text
        assert 'status="500"' not in text
    assert [record.getMessage() for record in caplog.records] == []


@pytest.mark.parametrize("left", [True, False])
async def test_a_failed_send_is_an_error_only_while_the_client_is_there(
    left: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.middleware.GONE_SECONDS", 0.05)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive() -> Message:
        if not left:
            await asyncio.sleep(60)
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        raise RuntimeError("the handler is closed")

    serve = BoundaryMiddleware(app)({"type": "http"}, receive, send)
    if left:
        await serve
    else:
        with pytest.raises(RuntimeError, match="the handler is closed"):
            await serve
