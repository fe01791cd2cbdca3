"""Grammars of answers that must be calls, and whose arguments must follow their schemas.

Written in llguidance's dialect of Lark, with a JSON schema for each function's arguments. The form
is Hermes' whatever the model's own is: the grammar, not the model, makes sure of it.
"""

import json
from collections.abc import Sequence

from app.protocol.tools import FunctionTool
from engine.types import GrammarSpec

MAX_CALLS = 16
"""Most calls of one forced answer; a small model may not find the end by itself."""

_BEFORE, _BEHIND, _BETWEEN = "<tool_call>\n", "\n</tool_call>", "\n"


def forced_calls(
    tools: Sequence[FunctionTool], *, parallel: bool, after: str | None
) -> GrammarSpec:
    """The grammar of one call, or of several when ``parallel``, of any of ``tools``.

    after: the mark behind reasoning that comes first.
    """
    names = [f"call{index}" for index in range(len(tools))]
    repeats = f" ({_quoted(_BETWEEN)} call){{0,{MAX_CALLS - 1}}}" if parallel else ""
    rules = [f"start: call{repeats}", f"call: {' | '.join(names)}"]
    for name, tool in zip(names, tools, strict=True):
        before = f'{_BEFORE}{{"name": {json.dumps(tool.name)}, "arguments": '
        rules.append(f"{name}: {_quoted(before)} {name}_arguments {_quoted('}' + _BEHIND)}")
        rules.append(f"{name}_arguments: %json {json.dumps({'type': 'object', **tool.parameters})}")
    return GrammarSpec("lark", "\n".join(rules), after, "tools")


def _quoted(text: str) -> str:
    """A Lark string."""
    return json.dumps(text)
