"""Calls as JSON objects behind a mark: the machine that most families' parsers are."""

from collections.abc import Callable, Collection

from msgspec import Struct

from app.serving.tools.scan import CallState, JsonCall
from app.serving.tools.sink import Sink


class CallFormat(Struct, frozen=True):
    """Where calls stand in a text.

    begin: the mark before a call, or before an array of calls. end: the mark behind it; empty:
    none. separators: characters that may stand between calls. bare: the text itself may begin
    with a call, without the mark.
    """

    begin: str
    end: str = ""
    separators: str = ""
    bare: bool = False


class MarkedCalls:
    """Finds calls in a text that arrives in parts; implements ``sink.Parser``.

    Holds back only what may become a mark, and a call until it starts.
    """

    def __init__(self, form: CallFormat, names: Collection[str], sink: Sink) -> None:
        self._form = form
        self._names = names
        self._sink = sink
        self._buffer = ""  # not looked at yet
        self._raw = ""  # looked at, and plain text if it turns out to be no call
        self._array = False
        self._call = JsonCall(names, sink)
        self._mode: Callable[[], bool] = self._head if form.bare else self._seek

    def push(self, text: str) -> None:
        """Take more text."""
        self._buffer += text
        while self._buffer and self._mode():
            pass

    def finish(self) -> None:
        """End of the text: a started call is over; what is held back is plain text."""
        if self._mode == self._calling and self._call.started:
            self._call.close()
            self._raw = ""
        if self._mode == self._between and self._form.end.startswith(self._buffer):
            self._raw = self._buffer = ""  # the mark of a call that is complete was cut
        self._sink.text(self._raw + self._buffer)
        self._raw = self._buffer = ""

    def _head(self) -> bool:
        """The text's first character decides whether it begins with a call."""
        first = self._buffer.lstrip()[:1]
        if first:
            self._mode = self._open if first in "{[" else self._seek
        return bool(first)

    def _seek(self) -> bool:
        """Pass text on up to the next mark."""
        begin = self._form.begin
        at = self._buffer.find(begin)
        if at < 0:
            self._send(len(self._buffer) - overlap(self._buffer, begin))
            return False
        self._send(at)
        self._take(len(begin))
        self._mode = self._open
        return True

    def _open(self) -> bool:
        """Behind a mark, a separator or an array's bracket."""
        char = self._skip_space()
        if char == "[" and not self._array:
            self._array = True
            self._take(1)
        elif char == "{":
            self._call = JsonCall(self._names, self._sink)
            self._mode = self._calling
        elif char:
            self._fail()
        return bool(char)

    def _calling(self) -> bool:
        self._take(self._call.push(self._buffer))
        if self._call.started:
            self._raw = ""
        if self._call.state is CallState.DONE:
            self._mode = self._between
        elif self._call.state is CallState.BROKEN:
            self._fail()
        return True

    def _between(self) -> bool:
        """Behind a call: another one, the end of the array, the mark behind it, or plain text."""
        char = self._skip_space()
        if self._array and char == "]":
            self._array = False
            self._drop(1)
        elif (self._array and char == ",") or (char and char in self._form.separators):
            self._take(1)
            self._mode = self._open
        elif self._array and char:
            self._fail()
        elif char:
            return self._closing()
        return bool(char)

    def _closing(self) -> bool:
        """The mark behind calls, where a family has one."""
        end = self._form.end
        if end and self._buffer.startswith(end):
            self._drop(len(end))
            self._mode = self._seek
        elif end and end.startswith(self._buffer):
            return False
        else:
            self._fail()
        return True

    def _fail(self) -> None:
        """Not a call: its mark is plain text, and what follows is looked at again."""
        begin = self._form.begin
        self._buffer, self._raw = self._raw + self._buffer, ""
        self._array = False
        self._mode = self._seek
        if self._buffer.startswith(begin):
            self._send(len(begin))

    def _skip_space(self) -> str:
        """Step over white space; return the next character, if it is there."""
        rest = self._buffer.lstrip()
        self._take(len(self._buffer) - len(rest))
        return rest[:1]

    def _take(self, count: int) -> None:
        self._raw += self._buffer[:count]
        self._buffer = self._buffer[count:]

    def _drop(self, count: int) -> None:
        """What belongs to the form of complete calls is no text."""
        self._raw = ""
        self._buffer = self._buffer[count:]

    def _send(self, count: int) -> None:
        if count:
            self._sink.text(self._buffer[:count])
            self._buffer = self._buffer[count:]


def overlap(text: str, mark: str) -> int:
    """How many of the last characters of ``text`` may begin ``mark``."""
    for count in range(min(len(text), len(mark) - 1), 0, -1):
        if mark.startswith(text[-count:]):
            return count
    return 0
