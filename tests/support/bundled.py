"""An engine whose deltas carry several tokens, as speculation makes them."""

from collections.abc import Callable, Sequence
from typing import Any

from engine.client import Engine
from engine.types import GenerationRequest, TokenDelta, TokenStream


class Bundled:
    """An engine that commits ``size`` tokens per delta, as speculation does."""

    def __init__(self, engine: Engine, size: int) -> None:
        self._engine = engine
        self._size = size

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def submit(self, requests: Sequence[GenerationRequest]) -> Sequence[TokenStream]:
        return [BundledStream(s, self._size) for s in self._engine.submit(requests)]


class BundledStream:
    """Joins deltas, up to ``size`` at a time."""

    def __init__(self, stream: TokenStream, size: int) -> None:
        self._stream = stream
        self._size = size
        self._ended = False

    def __aiter__(self) -> "BundledStream":
        return self

    async def __anext__(self) -> TokenDelta:
        if self._ended:
            raise StopAsyncIteration
        parts = [await anext(self._stream)]
        while len(parts) < self._size and parts[-1].finish_reason is None:
            parts.append(await anext(self._stream))
        self._ended = parts[-1].finish_reason is not None
        return _joined(parts)

    def follow(self, sink: Callable[[TokenDelta], None]) -> None:
        parts: list[TokenDelta] = []

        def collect(delta: TokenDelta) -> None:
            parts.append(delta)
            if len(parts) == self._size or delta.finish_reason is not None:
                joined = _joined(parts)
                parts.clear()
                sink(joined)

        self._stream.follow(collect)

    async def aclose(self) -> None:
        await self._stream.aclose()


def _joined(parts: Sequence[TokenDelta]) -> TokenDelta:
    return TokenDelta(
        tuple(t for p in parts for t in p.token_ids),
        tuple(x for p in parts for x in p.logprobs),
        parts[-1].finish_reason,
        parts[0].prompt_logprobs,
        parts[0].cached_tokens,
        parts[-1].error,
    )
