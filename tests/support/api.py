"""The whole application over a scripted engine, on a real socket."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import httpx
import uvicorn

from app.config import ServerConfig
from app.connection import Connection
from app.loading import Loaded
from app.main import create_app
from engine.client import Engine
from engine.text.assets import TextAssets
from engine.types import EngineClient
from tests.support.scripted import Behaviour, ScriptedEngine, scripted_engine
from tests.support.words import EOS, VOCAB_SIZE, byte_ids, chat_ids, text_assets

MODEL = "scripted"


@dataclass(frozen=True, slots=True)
class Api:
    """A running server, a client for it, and the engine behind it."""

    http: httpx.AsyncClient
    url: str
    parts: ScriptedEngine
    text: TextAssets

    def script(self, prompt: str | Sequence[dict[str, Any]], ids: Sequence[int]) -> None:
        """Make the model say ``ids`` after a text prompt or a conversation, then an end token."""
        self._script(
            byte_ids(prompt) if isinstance(prompt, str) else chat_ids(self.text, prompt), ids
        )

    def script_rendered(self, prompt: str, ids: Sequence[int]) -> None:
        """The same after the text of a rendered prompt, special tokens included."""
        self._script(tuple(self.text.tokenizer.encode(prompt)), ids)

    def _script(self, key: tuple[int, ...], ids: Sequence[int]) -> None:
        scripts = cast(dict[tuple[int, ...], Sequence[int]], self.parts.device.behaviour.scripts)
        scripts[key] = list(ids)

    async def complete(self, **fields: Any) -> httpx.Response:
        """POST a text completion; greedy unless told otherwise."""
        return await self.http.post("/v1/completions", json=_fields(fields))

    async def chat(self, **fields: Any) -> httpx.Response:
        """POST a chat completion; greedy unless told otherwise."""
        return await self.http.post("/v1/chat/completions", json=_fields(fields))

    async def alive(self) -> None:
        """Assert that the server serves, and that no block or slot is held."""
        answer = await self.chat(messages=[{"role": "user", "content": "hi"}], max_tokens=2)
        assert answer.status_code == 200, answer.text
        assert (await self.http.get("/health")).status_code == 200
        await self.idle()

    async def idle(self, seconds: float = 2.0) -> None:
        """Wait until no sequence runs; assert that all blocks and sampler slots are free."""
        for _ in range(int(seconds / 0.01)):
            if not self.parts.cache.used and not self.parts.device.sampler.slots_in_use:
                break
            await asyncio.sleep(0.01)
        assert self.parts.cache.used == 0
        assert self.parts.device.sampler.slots_in_use == frozenset()
        self.parts.scheduler.check_integrity()


def _fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"model": MODEL, "temperature": 0, **fields}


@asynccontextmanager
async def serving_api(
    *,
    engine: EngineClient | None = None,
    parts: ScriptedEngine | None = None,
    text: TextAssets | None = None,
    server: ServerConfig | None = None,
    **options: Any,
) -> AsyncIterator[Api]:
    """Serve on a free port. ``engine`` stands in front of the scripted one, when given."""
    text = text or text_assets()
    parts = parts or scripted_engine(behaviour(), **options)
    source: Future[Loaded] = Future()
    source.set_result(Loaded(cast(Engine, engine or parts.engine), text))
    app = create_app(server or ServerConfig(), source)
    config = uvicorn.Config(
        app, port=0, http=Connection, log_level="error", timeout_graceful_shutdown=1
    )
    running = uvicorn.Server(config)
    task = asyncio.create_task(running.serve())
    try:
        url = await _url(running, task)
        async with httpx.AsyncClient(base_url=url, timeout=30, verify=False) as http:
            await _until_ready(http)
            yield Api(http, url, parts, text)
    finally:
        running.should_exit = True
        await task


def behaviour(**options: Any) -> Behaviour:
    """A scripted model over the tiny tokenizer; the width has padding ids behind the vocabulary."""
    sizes = {"vocab_size": VOCAB_SIZE, "logits_width": -(-VOCAB_SIZE // 32) * 32}
    return Behaviour(**{**sizes, "eos": EOS, "scripts": {}, **options})


async def _url(server: uvicorn.Server, task: "asyncio.Task[None]") -> str:
    while not server.started:
        if task.done():
            task.result()
            raise RuntimeError("the server did not start")
        await asyncio.sleep(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    return f"http://127.0.0.1:{port}"


async def _until_ready(http: httpx.AsyncClient) -> None:
    for _ in range(200):
        if (await http.get("/health")).status_code == 200:
            return
        await asyncio.sleep(0.01)
    raise RuntimeError("the server did not become ready")


@dataclass(frozen=True, slots=True)
class Events:
    """A streamed answer, taken apart. ``comments``: keep-alives; ``done``: [DONE] was last."""

    chunks: list[dict[str, Any]]
    comments: int
    done: bool
    status: int
    content_type: str

    def of(self, index: int = 0) -> list[dict[str, Any]]:
        """The chunks' choices of one index."""
        return [c for chunk in self.chunks for c in chunk.get("choices", []) if c["index"] == index]


async def stream_events(http: httpx.AsyncClient, path: str, fields: Mapping[str, Any]) -> Events:
    """POST with ``stream`` and read all events."""
    body = {**_fields(fields), "stream": True}
    async with http.stream("POST", path, json=body) as response:
        raw = (await response.aread()).decode()
    return parse_events(raw, response.status_code, response.headers["content-type"])


def parse_events(raw: str, status: int, content_type: str) -> Events:
    """Take the text of an event stream apart, strictly."""
    if "event-stream" not in content_type:
        return Events([json.loads(raw)], 0, False, status, content_type)
    blocks = raw.split("\n\n")
    assert blocks.pop() == ""
    comments = sum(block.startswith(":") for block in blocks)
    data = [block.removeprefix("data: ") for block in blocks if not block.startswith(":")]
    done = bool(data) and data[-1] == "[DONE]"
    chunks = [json.loads(text) for text in (data[:-1] if done else data)]
    return Events(chunks, comments, done, status, content_type)
