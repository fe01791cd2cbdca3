"""Reads the text of one choice: reasoning, calls and the rest become events."""

import secrets
from collections.abc import Callable, Collection

from msgspec import Struct

from app.serving.events import (
    CallArguments,
    CallEnd,
    CallStart,
    ReasoningDelta,
    TextDelta,
    TurnEvent,
)
from app.serving.reasoning import ReasoningSplit, Where
from app.serving.tools.sink import MakeParser, Parser


def call_id() -> str:
    """A fresh id of a call, as OpenAI writes them."""
    return f"call_{secrets.token_hex(12)}"


class ReadingPlan(Struct, frozen=True):
    """How the answers to one prompt are read.

    marks, where: those of reasoning, and where answers begin; None: the model does not reason.
    parser: of calls of ``names``; None: none are looked for. parallel: more than one call may be
    made; else the first one ends the turn. new_id: makes call ids. shown: special tokens that the
    reader needs to see as text.
    """

    marks: tuple[str, str] | None = None
    where: Where = Where.OPEN
    parser: MakeParser | None = None
    names: Collection[str] = ()
    parallel: bool = True
    new_id: Callable[[], str] = call_id
    shown: tuple[str, ...] = ()

    def reader(self, index: int) -> "TurnReader":
        """The reader of choice ``index``."""
        return TurnReader(self, index)


class TurnReader:
    """Reader of choice ``index``; implements ``events.Reader`` and, for its parser, ``Sink``.

    White space between calls, and between text and calls, is not text.
    """

    def __init__(self, plan: ReadingPlan, index: int) -> None:
        self._index = index
        self._plan = plan
        self._events: list[TurnEvent] = []
        self._split: ReasoningSplit | None = None
        if plan.marks is not None:
            self._split = ReasoningSplit(plan.marks, plan.where, self._reason, self._content)
        self._parser: Parser | None = plan.parser(plan.names, self) if plan.parser else None
        self._calls = 0
        self._over = False
        self._finishing = False
        self._cut = False
        self._space = ""  # at the end of the text so far, not told yet
        self._behind_call = False

    @property
    def reasoning(self) -> bool:
        """Whether the text read so far ends within reasoning."""
        return self._split is not None and self._split.where is Where.INSIDE

    @property
    def called(self) -> bool:
        """Whether calls were made, the last one to its end."""
        return self._calls > 0 and not self._cut

    def push(self, text: str) -> bool:
        """Take more text; True when the turn is over because no further call is wanted."""
        if self._split is not None:
            self._split.push(text)
        else:
            self._content(text)
        return self._over

    def finish(self) -> None:
        """End of the text: what was held back becomes events."""
        if self._split is not None:
            self._split.finish()
        if self._parser is not None:
            self._finishing = True
            self._parser.finish()
            self._tell(self._space)
            self._space = ""

    def take(self) -> tuple[TurnEvent, ...]:
        """The events since the last time."""
        events = tuple(self._events)
        self._events.clear()
        return events

    def text(self, text: str) -> None:
        """Plain text that the parser found."""
        if self._behind_call:
            text = text.lstrip()
        text = self._space + text
        kept = text.rstrip()
        self._space = text[len(kept) :]
        self._tell(kept)

    def start(self, name: str) -> None:
        """A call begins."""
        self._space = ""
        if not self._over:
            self._calls += 1
            call, new = self._calls - 1, self._plan.new_id()
            self._events.append(CallStart(self._index, call, new, name))

    def arguments(self, text: str) -> None:
        """A part of a call's arguments."""
        if not self._over:
            self._events.append(CallArguments(self._index, self._calls - 1, text))

    def end(self) -> None:
        """A call is over."""
        if not self._over:
            self._events.append(CallEnd(self._index, self._calls - 1))
        self._cut = self._finishing
        self._behind_call = True
        self._over = not self._plan.parallel

    def _content(self, text: str) -> None:
        if self._parser is None:
            self._tell(text)
        elif not self._over:
            self._parser.push(text)

    def _reason(self, text: str) -> None:
        self._events.append(ReasoningDelta(self._index, text))

    def _tell(self, text: str) -> None:
        if text and not self._over:
            self._behind_call = False
            self._events.append(TextDelta(self._index, text))
