"""The running choices of one request: submit, merge, count, close."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing

from app.errors import INTERNAL_MESSAGE, ApiError, unavailable
from app.serving.assemble import Assembler, Piece
from engine.types import EngineClient, EngineState, FinishReason, GenerationRequest, TokenDelta


class Generation:
    """All choices of a request, submitted together.

    Raises what ``EngineClient.submit`` raises. The owner must call ``close``, which aborts what
    still runs.
    """

    def __init__(
        self,
        engine: EngineClient,
        requests: Sequence[GenerationRequest],
        assemblers: Sequence[Assembler],
    ) -> None:
        self._engine = engine
        self._requests = requests
        self._assemblers = assemblers
        self._streams = engine.submit(requests)

    @property
    def finished(self) -> bool:
        """True when every choice has ended."""
        return all(assembler.finish is not None for assembler in self._assemblers)

    @property
    def completion_tokens(self) -> int:
        """Tokens generated in all choices."""
        return sum(assembler.tokens for assembler in self._assemblers)

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of reasoning in all choices, among the generated ones."""
        return sum(assembler.reasoning_tokens for assembler in self._assemblers)

    def cached_tokens(self, first_choices: Sequence[int]) -> int:
        """Prompt tokens that the prefix cache gave, over one choice of each prompt."""
        return sum(self._assemblers[index].cached_tokens for index in first_choices)

    async def pieces(self) -> AsyncGenerator[list[Piece], None]:
        """What the choices add, in the order of arrival; all that is there at one wake-up.

        Raises ApiError when the engine gives a choice up; the others are then of no use.
        """
        if len(self._streams) == 1:
            async for delta in self._streams[0]:
                piece = self._take(0, delta)
                if piece is not None:
                    yield [piece]
                if self._assemblers[0].finish is not None:
                    return
        else:
            async with aclosing(_merge(self._streams)) as batches:
                async for batch in batches:
                    taken = [self._take(index, delta) for index, delta in batch]
                    yield [piece for piece in taken if piece is not None]
                    if self.finished:
                        return
        raise ApiError(500, "The engine ended this request early.", type="server_error")

    def close(self) -> None:
        """Abort every choice that has not ended; harmless when called again."""
        open_ids = [
            request.id
            for request, assembler in zip(self._requests, self._assemblers, strict=True)
            if assembler.finish is None
        ]
        if open_ids:
            self._engine.abort(open_ids)

    def _take(self, index: int, delta: TokenDelta) -> Piece | None:
        """Assemble one delta; a stop string ends the sequence in the engine, too."""
        assembler = self._assemblers[index]
        if assembler.finish is not None:
            return None
        if delta.finish_reason in (FinishReason.ERROR, FinishReason.ABORT):
            raise _failure(self._engine.state)
        piece = assembler.push(delta)
        if piece.finish is not None and delta.finish_reason is None:
            self._engine.abort([self._requests[index].id])
        return piece


def _failure(state: EngineState) -> ApiError:
    """What a client is told of a sequence that the engine gave up; why is in the engine's log."""
    if state is EngineState.DRAINING:
        return unavailable("The server ended this request because it is shutting down.")
    return ApiError(500, INTERNAL_MESSAGE, type="server_error")


Batch = list[tuple[int, TokenDelta]]


async def _merge(streams: Sequence[AsyncIterator[TokenDelta]]) -> AsyncGenerator[Batch, None]:
    """Deltas of all streams with their index, several at once when several are there."""
    queue: asyncio.Queue[tuple[int, TokenDelta] | BaseException | None] = asyncio.Queue()
    pumps = [asyncio.ensure_future(_pump(i, stream, queue)) for i, stream in enumerate(streams)]
    running = len(pumps)
    try:
        while running:
            items = [await queue.get()]
            while not queue.empty():
                items.append(queue.get_nowait())
            batch: Batch = []
            for item in items:
                if isinstance(item, BaseException):
                    raise item
                if item is None:
                    running -= 1
                else:
                    batch.append(item)
            if batch:
                yield batch
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(
    index: int,
    stream: AsyncIterator[TokenDelta],
    queue: "asyncio.Queue[tuple[int, TokenDelta] | BaseException | None]",
) -> None:
    """Move one stream's deltas into the common queue, then its end or its error."""
    try:
        async for delta in stream:
            queue.put_nowait((index, delta))
    except Exception as exc:
        queue.put_nowait(exc)
    else:
        queue.put_nowait(None)
