"""Llama 3.1 and later: the whole message is ``{"name": ..., "parameters": {...}}``.

Meta's model card, "JSON based tool calling"; several calls are separated by semicolons.
"""

from collections.abc import Collection

from app.serving.tools.marked import CallFormat, MarkedCalls
from app.serving.tools.sink import Parser, Sink

BEGIN = "<|python_tag|>"
MARKS = (BEGIN,)
FORM = CallFormat(BEGIN, separators=";,", bare=True)


def parser(names: Collection[str], sink: Sink) -> Parser:
    """A parser of one text."""
    return MarkedCalls(FORM, names, sink)
