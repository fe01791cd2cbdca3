"""A client that goes away ends its request, streaming or not, through the whole middleware."""

import asyncio
import json
from urllib.parse import urlsplit

import pytest

from app.config import ServerConfig
from tests.support.application import Served, served
from tests.support.scripted import Behaviour

CONFIG = ServerConfig(api_keys=("k",), cors_origins=("https://a.example",), ping_seconds=1)


async def send_and_leave(server: Served, body: dict[str, object], after: float) -> None:
    """Send a completion request over a plain socket, and close it ``after`` seconds later."""
    parts = urlsplit(server.url)
    _, writer = await asyncio.open_connection(parts.hostname, parts.port)
    data = json.dumps({"model": "scripted", **body}).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: flare\r\nAuthorization: Bearer k\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    writer.write(head.encode() + data)
    await writer.drain()
    await asyncio.sleep(after)
    assert server.parts.scheduler.running + server.parts.scheduler.waiting == 1
    writer.close()
    await writer.wait_closed()


async def until_idle(server: Served, seconds: float) -> bool:
    """Whether nothing runs and no block is held within ``seconds``."""
    scheduler, cache = server.parts.scheduler, server.parts.cache
    for _ in range(int(seconds / 0.02)):
        if scheduler.running + scheduler.waiting == 0 and cache.used == 0:
            return True
        await asyncio.sleep(0.02)
    return False


@pytest.mark.parametrize("stream", [False, True])
async def test_leaving_while_tokens_come(stream: bool) -> None:
    with served(CONFIG, Behaviour(delay=0.02), max_model_len=2048, num_blocks=200) as server:
        body = {"prompt": "abc", "max_tokens": 2000, "stream": stream, "ignore_eos": True}
        await send_and_leave(server, body, 0.4)
        assert await until_idle(server, 1.0)


@pytest.mark.parametrize("stream", [False, True])
async def test_leaving_during_a_long_prefill(stream: bool) -> None:
    with served(CONFIG, Behaviour(delay=0.05), max_model_len=4096, num_blocks=300) as server:
        body = {"prompt": "x" * 4000, "max_tokens": 10, "stream": stream}
        await send_and_leave(server, body, 0.4)
        assert await until_idle(server, 1.0)
