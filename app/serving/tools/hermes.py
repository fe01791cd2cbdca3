"""Hermes and Qwen: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``.

The format of NousResearch's Hermes 2 Pro function calling; SmolLM2's form with an array in one
element is read, too.
"""

from collections.abc import Collection

from app.serving.tools.marked import CallFormat, MarkedCalls
from app.serving.tools.sink import Parser, Sink

BEGIN, END = "<tool_call>", "</tool_call>"
MARKS = (BEGIN, END)
FORM = CallFormat(BEGIN, END)


def parser(names: Collection[str], sink: Sink) -> Parser:
    """A parser of one text."""
    return MarkedCalls(FORM, names, sink)
