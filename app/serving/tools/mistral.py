"""Mistral: ``[TOOL_CALLS]`` and an array of calls, or since v11 ``name[ARGS]{...}`` per call.

Forms as in mistral-common's instruct tokenizers; the newer one may hold ``[CALL_ID]`` and an id
before ``[ARGS]``. Its chat templates take call ids of nine letters and digits only.
"""

import re
import secrets
import string
from collections.abc import Collection

from app.serving.tools.marked import CallFormat, MarkedCalls
from app.serving.tools.scan import Extent, JsonExtent
from app.serving.tools.sink import Parser, Sink

BEGIN, ID, ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
MARKS = (BEGIN, ID, ARGUMENTS)
FORM = CallFormat(BEGIN)
MAX_HEAD = 256
"""Longest name with id and marks."""
_HEAD = re.compile(r"\s*([\w.-]+)(?:\[CALL_ID\][\w-]*)?(?:\[ARGS\])?\s*(?={)")
_LETTERS = string.ascii_letters + string.digits


def new_id() -> str:
    """A call id that Mistral's templates accept."""
    return "".join(secrets.choice(_LETTERS) for _ in range(9))


def parser(names: Collection[str], sink: Sink) -> Parser:
    """A parser of one text."""
    return MistralCalls(names, sink)


class MistralCalls(MarkedCalls):
    """Calls behind the mark, in either form."""

    def __init__(self, names: Collection[str], sink: Sink) -> None:
        super().__init__(FORM, names, sink)
        self._extent: JsonExtent | None = None

    def finish(self) -> None:
        """End of the text."""
        if self._extent is not None:
            self._extent = None
            self._sink.end()
        super().finish()

    def _open(self) -> bool:
        char = self._skip_space()
        if not char or char in "[{":
            return super()._open()
        head = _HEAD.match(self._buffer)
        if head is not None and head[1] in self._names:
            self._sink.start(head[1])
            self._drop(head.end())
            self._extent = JsonExtent()
            self._mode = self._in_arguments
        elif "{" in self._buffer or len(self._buffer) > MAX_HEAD:
            self._fail()
        else:
            return False
        return True

    def _in_arguments(self) -> bool:
        """Pass on the arguments of the newer form as they come."""
        extent, count = self._extent, 0
        place = Extent.WITHIN
        while extent is not None and place is Extent.WITHIN and count < len(self._buffer):
            place = extent.push(self._buffer[count])
            count += place in (Extent.WITHIN, Extent.LAST)
        if count:
            self._sink.arguments(self._buffer[:count])
        self._drop(count)
        if place is not Extent.WITHIN:
            self._extent = None
            self._sink.end()
            self._mode = self._seek
        return True
