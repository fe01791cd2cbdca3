"""Serve requests with a scripted engine, and check afterwards that nothing leaked."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from engine.types import GenerationRequest, SamplingParams, TokenDelta, TokenStream
from tests.support.scripted import Behaviour, ScriptedEngine, scripted_engine


@asynccontextmanager
async def serving(
    behaviour: Behaviour | None = None, **options: Any
) -> AsyncIterator[ScriptedEngine]:
    """Start a scripted engine; at the end it is idle, and nothing leaked."""
    parts = scripted_engine(behaviour, **options)
    parts.engine.start()
    yield parts
    await parts.engine.drain(10)
    await asyncio.sleep(0.05)
    parts.scheduler.check_integrity()
    assert parts.cache.used == 0
    assert parts.device.sampler.slots_in_use == frozenset()
    await parts.engine.close()


def request(
    name: str,
    prompt: Sequence[int],
    max_tokens: int = 8,
    salt: str | None = None,
    priority: int = 0,
    **sampling: Any,
) -> GenerationRequest:
    """A greedy request, unless ``sampling`` says otherwise."""
    params = SamplingParams(**{"max_tokens": max_tokens, "temperature": 0.0, **sampling})
    return GenerationRequest(name, tuple(prompt), params, cache_salt=salt, priority=priority)


async def collect(stream: TokenStream) -> list[TokenDelta]:
    return [delta async for delta in stream]


def ids(deltas: Sequence[TokenDelta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]
