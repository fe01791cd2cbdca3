"""The application's life: wait for the engine, start it, serve, close it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager

from starlette.applications import Starlette

from app.config import ServerConfig
from app.loading import Loaded
from app.service import Service
from app.serving.context import ServingContext
from engine.grammar.compiler import GrammarCompiler

Lifespan = Callable[[Starlette], AbstractAsyncContextManager[None]]


def make_lifespan(
    service: Service,
    source: "Future[Loaded]",
    config: ServerConfig,
    on_loaded: Callable[[Service], None],
) -> Lifespan:
    """The lifespan of ``create_app``: requests are answered (503) while ``source`` is pending.

    ``on_loaded`` is called once, in the event loop, when loading has succeeded or failed; the
    service then holds the engine or the error.
    """

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        loading = asyncio.create_task(_become_ready(service, source, config, on_loaded))
        try:
            yield
        finally:
            loading.cancel()
            await asyncio.gather(loading, return_exceptions=True)
            if service.loaded is not None:
                await service.loaded.engine.close()

    return lifespan


async def _become_ready(
    service: Service,
    source: "Future[Loaded]",
    config: ServerConfig,
    on_loaded: Callable[[Service], None],
) -> None:
    try:
        loaded = await asyncio.wrap_future(source)
        loaded.engine.start()
        service.become_ready(_context(loaded, config), loaded.engine.metrics.registry)
    except Exception as exc:
        service.fail(exc)
    on_loaded(service)


def _context(loaded: Loaded, config: ServerConfig) -> ServingContext:
    model = loaded.engine.model
    return ServingContext(
        engine=loaded.engine,
        text=loaded.text,
        grammars=GrammarCompiler(loaded.text.tokenizer, model.vocab_size, model.eos_token_ids),
        model_names=config.served_model_names or (loaded.engine.model.id,),
        ping_seconds=config.ping_seconds,
        tool_parser=config.tool_parser,
        reasoning_parser=config.reasoning_parser,
    )
