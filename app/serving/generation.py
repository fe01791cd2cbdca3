"""The running choices of one request: submit, merge, count, close."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial

from app.errors import INTERNAL_MESSAGE, ApiError, unavailable
from app.serving.assemble import Assembler, Piece
from engine.types import EngineClient, EngineState, FinishReason, GenerationRequest, TokenDelta

_GIVEN_UP = (FinishReason.ERROR, FinishReason.ABORT)


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
        self._unfinished = len(assemblers)
        self._arrived: list[tuple[int, TokenDelta]] = []
        self._waiter: asyncio.Future[None] | None = None
        self._at_once: Callable[[], bool] | None = None
        for index, stream in enumerate(engine.submit(requests)):
            stream.follow(partial(self._arrive, index))

    @property
    def finished(self) -> bool:
        """True when every choice has ended."""
        return self._unfinished == 0

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

    def take(self) -> list[Piece]:
        """What the choices have added since the last time, in the order of arrival.

        Raises ApiError when the engine gives a choice up; the others are then of no use.
        """
        arrived, self._arrived = self._arrived, []
        if len(arrived) == 1 and arrived[0][1].finish_reason is None:  # nearly always
            piece = self._take(*arrived[0])
            return [] if piece is None else [piece]
        pieces: list[Piece] = []
        for position, (index, delta) in enumerate(arrived):
            if delta.finish_reason in _GIVEN_UP and self._assemblers[index].finish is None:
                if not pieces:
                    raise _failure(self._engine.state)
                self._arrived = arrived[position:]  # first what came before
                break
            piece = self._take(index, delta)
            if piece is not None:
                pieces.append(piece)
        return pieces

    async def wait(self) -> None:
        """Return when there is something to take, or what came was taken ``at_once``, in vain."""
        if self._arrived:
            return
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def offer(self, at_once: Callable[[], bool] | None) -> None:
        """Have ``at_once`` called, on the event loop, for every delta of a single choice.

        It may ``take`` there and then, which spares waking a task for every token; False makes
        ``wait`` return as ever. It must not raise. Deltas of several choices are left to ``wait``,
        which gives what a step brought to all of them together.
        """
        self._at_once = at_once if len(self._assemblers) == 1 else None

    async def pieces(self) -> AsyncGenerator[list[Piece], None]:
        """What the choices add, in the order of arrival; all that is there at one wake-up.

        Raises as ``take`` does.
        """
        while not self.finished:
            await self.wait()
            yield self.take()

    def close(self) -> None:
        """Abort every choice that has not ended; harmless when called again."""
        self._at_once = None
        open_ids = [
            request.id
            for request, assembler in zip(self._requests, self._assemblers, strict=True)
            if assembler.finish is None
        ]
        if open_ids:
            self._engine.abort(open_ids)

    def _arrive(self, index: int, delta: TokenDelta) -> None:
        """Keep a delta for ``take``; of a choice that has ended here nothing more is wanted."""
        if self._assemblers[index].finish is not None:
            return
        self._arrived.append((index, delta))
        if self._at_once is not None and self._at_once():
            return
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _take(self, index: int, delta: TokenDelta) -> Piece | None:
        """Assemble one delta; a stop string ends the sequence in the engine, too."""
        assembler = self._assemblers[index]
        if assembler.finish is not None:
            return None
        piece = assembler.push(delta)
        if piece.finish is not None:
            self._unfinished -= 1
            if delta.finish_reason is None:
                self._engine.abort([self._requests[index].id])
        return piece


def _failure(state: EngineState) -> ApiError:
    """What a client is told of a sequence that the engine gave up; why is in the engine's log."""
    if state is EngineState.DRAINING:
        return unavailable("The server ended this request because it is shutting down.")
    return ApiError(500, INTERNAL_MESSAGE, type="server_error")
