"""Llama 3.2 and 4, pythonic form: the message is a list of calls, ``[f(a=1), g(b="x")]``.

Arguments are Python literals, which become JSON once a call is complete.
"""

import ast
import json
import re
from collections.abc import Callable, Collection

from app.serving.tools.sink import Parser, Sink

MARKS: tuple[str, ...] = ()
_HEAD = re.compile(r"([A-Za-z_]\w*)\s*\(")
_PARTIAL_HEAD = re.compile(r"(?:[A-Za-z_]\w*\s*)?")


def parser(names: Collection[str], sink: Sink) -> Parser:
    """A parser of one text."""
    return PythonicCalls(names, sink)


class CallExtent:
    """Finds the closing parenthesis of a Python call; brackets in strings do not count."""

    def __init__(self) -> None:
        self._depth = 0
        self._quote = ""
        self._escaped = False

    def push(self, char: str) -> bool:
        """Take the next character; True when it closes the call."""
        if self._quote:
            if self._escaped:
                self._escaped = False
            elif char == "\\":
                self._escaped = True
            elif char == self._quote:
                self._quote = ""
        elif char in "\"'":
            self._quote = char
        elif char in "([{":
            self._depth += 1
        elif char in ")]}":
            self._depth -= 1
            return self._depth == 0
        return False


class PythonicCalls:
    """Finds a list of calls at the beginning of a text; implements ``sink.Parser``."""

    def __init__(self, names: Collection[str], sink: Sink) -> None:
        self._names = names
        self._sink = sink
        self._buffer = ""
        self._raw = ""
        self._extent = CallExtent()
        self._scanned = 0
        self._mode: Callable[[], bool] = self._head

    def push(self, text: str) -> None:
        """Take more text."""
        self._buffer += text
        while self._buffer and self._mode():
            pass

    def finish(self) -> None:
        """End of the text: what is held back is plain text."""
        self._sink.text(self._raw + self._buffer)
        self._raw = self._buffer = ""

    def _head(self) -> bool:
        char = self._skip_space()
        if char == "[":
            self._take(1)
            self._mode = self._open
        elif char:
            self._fail()
        return bool(char)

    def _open(self) -> bool:
        """The name of a call and its parenthesis."""
        self._skip_space()
        head = _HEAD.match(self._buffer)
        if head is not None and head[1] in self._names:
            self._extent, self._scanned = CallExtent(), 0
            self._mode = self._call
        elif head is not None or not _PARTIAL_HEAD.fullmatch(self._buffer):
            self._fail()
        else:
            return False
        return True

    def _call(self) -> bool:
        for index in range(self._scanned, len(self._buffer)):
            if self._extent.push(self._buffer[index]):
                return self._complete(index + 1)
        self._scanned = len(self._buffer)
        return False

    def _complete(self, count: int) -> bool:
        found = parse_call(self._buffer[:count])
        if found is None:
            self._fail()
            return True
        self._sink.start(found[0])
        self._sink.arguments(found[1])
        self._sink.end()
        self._raw, self._buffer = "", self._buffer[count:]
        self._mode = self._between
        return True

    def _between(self) -> bool:
        char = self._skip_space()
        if char == ",":
            self._take(1)
            self._mode = self._open
        elif char == "]":
            self._raw, self._buffer = "", self._buffer[1:]
            self._mode = self._plain
        elif char:
            self._fail()
        return bool(char)

    def _plain(self) -> bool:
        self._sink.text(self._buffer)
        self._buffer = ""
        return False

    def _fail(self) -> None:
        self._buffer, self._raw = self._raw + self._buffer, ""
        self._mode = self._plain

    def _skip_space(self) -> str:
        rest = self._buffer.lstrip()
        self._take(len(self._buffer) - len(rest))
        return rest[:1]

    def _take(self, count: int) -> None:
        self._raw += self._buffer[:count]
        self._buffer = self._buffer[count:]


def parse_call(text: str) -> tuple[str, str] | None:
    """Name and JSON arguments of one Python call with literal keyword arguments, or None."""
    try:
        call = ast.parse(text.strip(), mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
            return None
        values = {key.arg: ast.literal_eval(key.value) for key in call.keywords}
        if None in values:
            return None
        arguments = json.dumps(values, ensure_ascii=False, allow_nan=False)
        if not _is_unicode(arguments):  # lone surrogates, which JSON can only spell as escapes
            arguments = json.dumps(values)
        return call.func.id, arguments
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
