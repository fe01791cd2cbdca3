"""One call written as a JSON object, read character by character."""

import json
from collections.abc import Callable, Collection
from enum import Enum

from app.serving.tools.sink import Sink

NAME_KEY = "name"
ARGUMENT_KEYS = frozenset(["arguments", "parameters"])
_SPACE = " \t\r\n"
_CLOSERS = {"{": "}", "[": "]"}
_SCALAR_ENDS = _SPACE + ",}]"


class Extent(Enum):
    """Where a character stands in a JSON value."""

    WITHIN = 0
    LAST = 1
    BEHIND = 2  # the value ended before this character
    WRONG = 3


class JsonExtent:
    """Finds the end of one JSON value (RFC 8259): brackets in strings do not count.

    Brackets are matched; scalars and what stands between brackets are not checked.
    """

    __slots__ = ("_closers", "_escaped", "_scalar", "_string")

    def __init__(self) -> None:
        self._closers: list[str] = []
        self._string = False
        self._escaped = False
        self._scalar = False

    def push(self, char: str) -> Extent:
        """Take the next character; the first one must not be a space."""
        if self._string:
            return self._in_string(char)
        if self._scalar:
            return Extent.BEHIND if char in _SCALAR_ENDS else Extent.WITHIN
        if char == '"':
            self._string = True
            return Extent.WITHIN
        if char in _CLOSERS:
            self._closers.append(_CLOSERS[char])
            return Extent.WITHIN
        if char in "}]":
            return self._close(char)
        if not self._closers:
            self._scalar = char.isalnum() or char == "-"
            return Extent.WITHIN if self._scalar else Extent.WRONG
        return Extent.WITHIN

    def _in_string(self, char: str) -> Extent:
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            self._string = False
            return Extent.WITHIN if self._closers else Extent.LAST
        return Extent.WITHIN

    def _close(self, char: str) -> Extent:
        if not self._closers or self._closers.pop() != char:
            return Extent.WRONG
        return Extent.WITHIN if self._closers else Extent.LAST


class CallState(Enum):
    """How far the reading of a call has come."""

    OPEN = 0
    DONE = 1
    BROKEN = 2


class JsonCall:
    """Reads ``{"name": ..., "arguments": {...}}``, in either order, with any further keys.

    The call starts once its name is known and its arguments begin: then they are passed on as they
    come, in the model's own spelling. ``names`` are the functions that may be called. Arguments
    may also be JSON text in a string, null or absent (no arguments). A call that breaks before it
    has started was none.
    """

    def __init__(self, names: Collection[str], sink: Sink) -> None:
        self.state = CallState.OPEN
        self.started = False
        self._names = names
        self._sink = sink
        self._ended = False
        self._mode: Callable[[str], bool] = self._before
        self._extent = JsonExtent()
        self._value: list[str] = []
        self._key = ""
        self._name: str | None = None
        self._arguments: str | None = None
        self._live = False  # the value that is read goes to the sink at once

    def push(self, text: str) -> int:
        """Take characters while the call is open; return how many were taken."""
        count = 0
        for char in text:
            if not self._mode(char):
                self.state = CallState.BROKEN
                break
            count += 1
            if self.state is not CallState.OPEN:
                break
        self._pass_on()
        if self.state is CallState.BROKEN:
            self.close()
        return count

    def close(self) -> None:
        """End a call that has started, whatever is missing."""
        if self.started and not self._ended:
            self._ended = True
            self._sink.end()

    def _before(self, char: str) -> bool:
        if char == "{":
            self._mode = self._next_key
        return char == "{" or char in _SPACE

    def _next_key(self, char: str) -> bool:
        if char == '"':
            self._begin(char)
            self._mode = self._in_key
        elif char == "}":
            return self._done()
        return char == '"' or char in _SPACE

    def _in_key(self, char: str) -> bool:
        self._value.append(char)
        if self._extent.push(char) is Extent.LAST:
            key = _loads("".join(self._value))
            self._key = key if isinstance(key, str) else ""
            self._mode = self._colon
        return True

    def _colon(self, char: str) -> bool:
        if char == ":":
            self._mode = self._before_value
        return char == ":" or char in _SPACE

    def _before_value(self, char: str) -> bool:
        if char in _SPACE:
            return True
        known = self._name is not None and self._arguments is None
        self._live = known and char == "{" and self._key in ARGUMENT_KEYS
        if self._live:
            self._start()
        self._mode = self._in_value
        return self._begin(char)

    def _in_value(self, char: str) -> bool:
        place = self._extent.push(char)
        if place is Extent.BEHIND:
            return self._end_value() and self._after_value(char)
        if place is Extent.WRONG:
            return False
        self._value.append(char)
        return place is Extent.WITHIN or self._end_value()

    def _after_value(self, char: str) -> bool:
        if char == "}":
            return self._done()
        if char == ",":
            self._mode = self._next_key
        return char == "," or char in _SPACE

    def _begin(self, char: str) -> bool:
        """Begin a value or a key with its first character."""
        self._extent = JsonExtent()
        self._value = [char]
        return self._extent.push(char) is not Extent.WRONG

    def _end_value(self) -> bool:
        """Take a whole value; False when it cannot belong to a call."""
        self._mode = self._after_value
        if self._live:
            self._pass_on()
            self._live = False
            self._arguments = ""
            self.close()
            return True
        value = "".join(self._value)
        if self._key == NAME_KEY and self._name is None:
            name = _loads(value)
            self._name = name if isinstance(name, str) and name in self._names else None
            if self._name is None:
                return False
        elif self._key in ARGUMENT_KEYS and self._arguments is None:
            self._arguments = _object_text(value)
            if self._arguments is None:
                return False
        if self._name is not None and self._arguments is not None and not self.started:
            self._whole(self._arguments)
        return True

    def _done(self) -> bool:
        if not self.started:
            if self._name is None:
                return False
            self._whole("{}")
        self.state = CallState.DONE
        return True

    def _start(self) -> None:
        if self._name is not None:
            self.started = True
            self._sink.start(self._name)

    def _whole(self, arguments: str) -> None:
        self._start()
        self._sink.arguments(arguments)
        self.close()

    def _pass_on(self) -> None:
        """Give the sink what has come of live arguments."""
        if self._live and self._value and self.started:
            self._sink.arguments("".join(self._value))
            self._value = []


def _object_text(value: str) -> str | None:
    """Arguments as the JSON text of an object; None when they are none."""
    if value.startswith("{"):
        return value
    found = _loads(value)
    if value == "null":
        return "{}"
    return found if isinstance(found, str) and isinstance(_loads(found), dict) else None


def _loads(text: str) -> object:
    """The value of JSON text; None when it is not valid."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
