"""A streamed answer on its way from the engine to the wire: deltas in, ready-made events out."""

from collections.abc import Callable, Sequence

from app.serving.assemble import Piece
from app.serving.generation import Generation


class AnswerStream:
    """What ``app.sse.EventStream`` sends of a generation; ``render`` writes pieces as events.

    first: events that wait for nothing.
    """

    def __init__(
        self, generation: Generation, render: Callable[[Sequence[Piece]], str], first: bytes = b""
    ) -> None:
        self.first = first
        self.wait = generation.wait
        self.offer = generation.offer
        self._generation = generation
        self._render = render

    @property
    def finished(self) -> bool:
        """True when the last event was taken."""
        return self._generation.finished

    def take(self) -> bytes:
        """The events of what has arrived since the last time; empty when it shows in none.

        Raises as ``Generation.take``.
        """
        return self._render(self._generation.take()).encode()
