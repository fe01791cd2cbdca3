"""Tools and tool choice of a response, in the terms of a turn."""

from collections.abc import Sequence
from typing import Any

from app.errors import ApiError, bad_field
from app.protocol.responses import ResponseTool
from app.protocol.tools import AUTO, FunctionTool, ToolChoice


def function_tools(tools: Sequence[ResponseTool] | None) -> tuple[FunctionTool, ...]:
    """The functions that the model may call. Raises ApiError (400) for a name given twice."""
    found = tuple(map(_function, tools or ()))
    names = [tool.name for tool in found]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise bad_field("tools", f"has more than one function named {min(twice)!r}")
    return found


def _function(tool: ResponseTool) -> FunctionTool:
    parameters = {"type": "object"} if tool.parameters is None else tool.parameters
    return FunctionTool(tool.name or "", tool.description, parameters, bool(tool.strict))


def tool_choice(choice: str | dict[str, Any] | None, tools: Sequence[FunctionTool]) -> ToolChoice:
    """Which tool is to be called. Raises ApiError (400, param tool_choice)."""
    if choice is None:
        return AUTO
    if choice == "none":
        return ToolChoice("none")
    if choice == "auto":
        return AUTO
    if choice == "required":
        if not tools:
            raise bad_field("tool_choice", "'required' needs tools")
        return ToolChoice("required")
    if not isinstance(choice, dict) or not isinstance(choice.get("type"), str):
        raise bad_field("tool_choice", "must be 'none', 'auto', 'required' or name a function")
    return _named(choice, tools)


def _named(choice: dict[str, Any], tools: Sequence[FunctionTool]) -> ToolChoice:
    if choice["type"] != "function":
        kind = choice["type"][:40]
        raise ApiError(
            400,
            f"tool_choice of type {kind!r} is not supported.",
            param="tool_choice",
            code="unsupported_parameter",
        )
    name = choice.get("name")
    if not isinstance(name, str) or name not in {tool.name for tool in tools}:
        raise bad_field("tool_choice", "must name a function that is among the tools")
    return ToolChoice("named", name)
