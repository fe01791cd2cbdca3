"""Tools in the prompt of a model whose chat template does not know them (Hermes form)."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

_TEXT = (
    "You can call functions. Each line between <tools> and </tools> describes one, with the JSON "
    "schema of its parameters:\n<tools>\n{tools}\n</tools>\n"
    "To call a function, write its name and arguments as one JSON object in a tool_call element, "
    "like this:\n"
    '<tool_call>\n{{"name": "function", "arguments": {{"parameter": "value"}}}}\n</tool_call>'
)


def with_tools(
    turns: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], *, system: bool
) -> list[dict[str, Any]]:
    """The conversation with the tools told in its system message.

    system: the template has a place for one; else they come before the first message's text.
    """
    described = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    text = _TEXT.format(tools=described)
    result = [dict(turn) for turn in turns]
    if result and (result[0]["role"] == "system" or not system):
        first = result[0]
        parts = [first.get("content") or "", text]
        first["content"] = "\n\n".join(filter(None, parts if system else reversed(parts)))
        return result
    return [{"role": "system", "content": text}, *result]
