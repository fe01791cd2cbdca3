"""Between a parser of calls and what is done with what it finds."""

from collections.abc import Collection
from typing import Protocol


class Sink(Protocol):
    """Gets the parts of a text in order. Calls do not overlap."""

    def text(self, text: str) -> None:
        """Plain content."""
        ...

    def start(self, name: str) -> None:
        """A call of the function ``name`` begins."""
        ...

    def arguments(self, text: str) -> None:
        """A part of the arguments of the call that has begun, as JSON text."""
        ...

    def end(self) -> None:
        """The call is over."""
        ...


class Parser(Protocol):
    """Takes a text that arrives in parts; what the sink gets depends on the whole text alone.

    What turns out not to be a call is plain content: nothing is lost.
    """

    def push(self, text: str) -> None:
        """Take more text."""
        ...

    def finish(self) -> None:
        """End of the text."""
        ...


class MakeParser(Protocol):
    """Each family module's ``parser``: only functions of ``names`` can be called."""

    def __call__(self, names: Collection[str], sink: Sink, /) -> Parser: ...
