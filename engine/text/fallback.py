"""Messages that a template has no words for: what it can express, and plain text for the rest."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

Probe = Callable[[list[dict[str, Any]]], str | None]
"""Renders messages; None when the template refuses them."""

_NAME = "probe_function"
_CALL = {
    "id": "call00001",
    "type": "function",
    "function": {"name": _NAME, "arguments": {"probe_key": "probe_value"}},
}
_USER = {"role": "user", "content": "probe question"}


class TemplateAbilities(Struct, frozen=True):
    """What a template does with the parts of a conversation that not all templates know.

    null_content: an assistant message with tool calls and null content renders cleanly.
    tool_calls: the names of called functions appear in the prompt. text_arguments: call arguments
    may be JSON text; else they must be objects.
    """

    null_content: bool
    tool_calls: bool
    text_arguments: bool


def probe_abilities(probe: Probe) -> TemplateAbilities:
    """Find out by rendering small samples."""
    objects = _call_text(probe, _CALL, "") or _call_text(probe, _CALL, None)
    as_text = {**_CALL, "function": {"name": _NAME, "arguments": '{"probe_key": "probe_value"}'}}
    text = _call_text(probe, as_text, "") or _call_text(probe, as_text, None)
    null = _call_text(probe, _CALL, None) or _call_text(probe, as_text, None)
    return TemplateAbilities(
        null_content=null is not None and "None" not in null,
        tool_calls=objects is not None or text is not None,
        text_arguments=text is not None and _unescaped(text),
    )


def adapt_messages(
    messages: Sequence[Mapping[str, Any]], abilities: TemplateAbilities
) -> list[dict[str, Any]]:
    """Return messages that the template can express; what it can is left as it is.

    Tool calls that it would drop become text of the message, one ``<tool_call>`` element with a
    JSON object each (the Hermes convention); null content that it cannot take becomes "".
    """
    return [_adapt(message, abilities) for message in messages]


def _adapt(message: Mapping[str, Any], abilities: TemplateAbilities) -> dict[str, Any]:
    result = dict(message)
    calls = result.get("tool_calls")
    if calls and not abilities.tool_calls:
        del result["tool_calls"]
        texts = [result.get("content") or "", *map(_written_call, calls)]
        result["content"] = "\n".join(text for text in texts if text)
    elif calls and not abilities.text_arguments:
        result["tool_calls"] = [_with_object_arguments(call) for call in calls]
    if result.get("content") is None and not (result.get("tool_calls") and abilities.null_content):
        result["content"] = ""
    return result


def _call_text(probe: Probe, call: Mapping[str, Any], content: str | None) -> str | None:
    """Render an assistant turn with one call; None unless the called name shows."""
    turn = {"role": "assistant", "content": content, "tool_calls": [call]}
    text = probe([dict(_USER), turn])
    return text if text is not None and _NAME in text else None


def _unescaped(text: str) -> bool:
    """Whether JSON arguments came out as JSON, not as a quoted string."""
    return '"probe_key"' in text


def _function(call: Any) -> Mapping[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    return function if isinstance(function, Mapping) else {}


def _written_call(call: Any) -> str:
    function = _function(call)
    body = {"name": function.get("name"), "arguments": _parsed(function.get("arguments"))}
    return f"<tool_call>\n{json.dumps(body, ensure_ascii=False)}\n</tool_call>"


def _with_object_arguments(call: Any) -> Any:
    function = _function(call)
    if not function:
        return call
    return {**call, "function": {**function, "arguments": _parsed(function.get("arguments"))}}


def _parsed(arguments: Any) -> Any:
    """Arguments as an object where they are JSON text of one; else as they came."""
    if not isinstance(arguments, str):
        return arguments
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments
