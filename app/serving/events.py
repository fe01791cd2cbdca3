"""What a turn of the assistant adds, piece by piece, whatever the wire form.

The events of one choice (``index``) come in this order: any mix of ``ReasoningDelta``,
``TextDelta`` and calls, then exactly one ``Finish``, and nothing after it. A call is one
``CallStart``, then any number of ``CallArguments``, then one ``CallEnd``; calls do not overlap, and
``call`` counts them from 0. Deltas joined equal what an answer in one piece holds, wherever the
text was cut.
"""

from typing import Literal, Protocol

from msgspec import Struct

from engine.types import TokenLogprobs

FinishKind = Literal["stop", "length", "tool_calls"]


class TokenEntry(Struct, frozen=True):
    """A token's log probability and where its text starts in the choice's text (characters)."""

    logprobs: TokenLogprobs
    start: int


class TextDelta(Struct, frozen=True):
    """Text of the answer. ``text`` may be empty when there are only entries or ids to tell.

    entries: log probabilities, if asked for, of all tokens of the choice, those of reasoning and
    calls too. token_ids: the ids that the same step generated.
    """

    index: int
    text: str
    entries: tuple[TokenEntry, ...] = ()
    token_ids: tuple[int, ...] = ()


class ReasoningDelta(Struct, frozen=True):
    """Text that the model thinks before its answer."""

    index: int
    text: str


class CallStart(Struct, frozen=True):
    """The model calls the function ``name``; ``id`` is fresh and names the call."""

    index: int
    call: int
    id: str
    name: str


class CallArguments(Struct, frozen=True):
    """A part of a call's arguments, which are JSON text when joined."""

    index: int
    call: int
    text: str


class CallEnd(Struct, frozen=True):
    """The call has all its arguments (unless the text was cut within it: see ``Finish``)."""

    index: int
    call: int


class Finish(Struct, frozen=True):
    """The choice is over.

    reason: "tool_calls" only if a call was made and the text was not cut; "length" when it was cut
    by max_tokens or the context, also within a call; else "stop", also when a stop string or an end
    token came within a call's arguments. stop: the stop string that ended it, if one did.
    """

    index: int
    reason: FinishKind
    stop: str | None = None


CallEvent = CallStart | CallArguments | CallEnd
TurnEvent = TextDelta | ReasoningDelta | CallEvent | Finish


class Reader(Protocol):
    """Takes the text of one choice apart into events; see ``app.serving.reader``."""

    @property
    def reasoning(self) -> bool:
        """Whether the text read so far ends within reasoning."""
        ...

    @property
    def called(self) -> bool:
        """Whether calls were made, the last one to its end; asked after ``finish``."""
        ...

    def push(self, text: str) -> bool:
        """Take more text; True when the turn is over because no further call is wanted."""
        ...

    def finish(self) -> None:
        """End of the text: what was held back becomes events."""
        ...

    def take(self) -> "tuple[TurnEvent, ...]":
        """The events since the last time."""
        ...
