"""The whole HTTP application on a scripted engine, for tests that need no model."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers

from app.config import ServerConfig
from app.connection import Connection
from app.loading import Loaded
from app.main import create_app
from app.service import Service
from engine.text.assets import TextAssets
from engine.text.info import PieceRules, TextInfo
from engine.text.tokenizer import Tokenizer
from tests.support.scripted import Behaviour, ScriptedEngine, scripted_engine


def byte_text() -> TextAssets:
    """A tokenizer of one token per byte (256 ids, the last one ends a text), no chat template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    info = TextInfo(256, False, None, (0,), PieceRules("byte_level"))
    return TextAssets(Tokenizer(backend, info), None)


@dataclass(frozen=True, slots=True)
class Application:
    """An application that has started, a client for it, and the engine behind it."""

    app: Starlette
    http: httpx.AsyncClient
    parts: ScriptedEngine
    source: "Future[Loaded]"
    over: asyncio.Event
    """Set when loading has ended, well or not."""

    @property
    def service(self) -> Service:
        service = self.app.state.service
        assert isinstance(service, Service)
        return service

    async def metric(self, name: str) -> float:
        """The sum of a metric's series in /metrics."""
        text = (await self.http.get("/metrics")).text
        lines = [line for line in text.splitlines() if line.startswith(name)]
        return sum(float(line.rpartition(" ")[2]) for line in lines)


@asynccontextmanager
async def application(
    config: ServerConfig | None = None,
    behaviour: Behaviour | None = None,
    *,
    loaded: bool = True,
    **options: Any,
) -> AsyncIterator[Application]:
    """Start the application in this event loop; ``loaded=False`` leaves the engine pending."""
    parts = scripted_engine(behaviour, **options)
    source: Future[Loaded] = Future()
    over = asyncio.Event()
    app = create_app(config or ServerConfig(), source, on_loaded=lambda _: over.set())
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://flare") as client,
    ):
        built = Application(app, client, parts, source, over)
        if loaded:
            await finish_loading(built)
        yield built


async def finish_loading(built: Application) -> None:
    """Hand the engine to an application that waits for it, until it is ready."""
    built.source.set_result(Loaded(built.parts.engine, byte_text()))
    await built.over.wait()


@dataclass(frozen=True, slots=True)
class Served:
    """An application on a real socket, run by a thread of its own."""

    url: str
    app: Starlette
    parts: ScriptedEngine


@contextmanager
def served(
    config: ServerConfig | None = None, behaviour: Behaviour | None = None, **options: Any
) -> Iterator[Served]:
    """Serve over real sockets; the engine belongs to the thread's event loop."""
    parts = scripted_engine(behaviour, **options)
    source: Future[Loaded] = Future()
    source.set_result(Loaded(parts.engine, byte_text()))
    ready = threading.Event()
    app = create_app(config or ServerConfig(), source, on_loaded=lambda _: ready.set())
    listener = socket.create_server(("127.0.0.1", 0))
    settings = uvicorn.Config(app, http=Connection, log_config=None, access_log=False, ws="none")
    server = uvicorn.Server(settings)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    try:
        assert ready.wait(20)
        yield Served(f"http://127.0.0.1:{listener.getsockname()[1]}", app, parts)
    finally:
        server.should_exit = True
        thread.join(20)
