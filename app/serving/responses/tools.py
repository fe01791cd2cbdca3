"""Tools and tool choice of a response, in the terms of a turn."""

from typing import Any

from app.errors import ApiError, bad_field
from app.protocol.responses import ResponseRequest, ResponseTool
from app.protocol.tools import AUTO, CHOICES, FunctionTool, ToolChoice
from app.serving.rules import check_tools


def asked_tools(request: ResponseRequest) -> tuple[tuple[FunctionTool, ...], ToolChoice]:
    """The functions of a request and which of them to call. Raises ApiError (400)."""
    tools = tuple(map(_function, request.tools or ()))
    choice = _choice(request.tool_choice)
    check_tools(tools, choice)
    return tools, choice


def _function(tool: ResponseTool) -> FunctionTool:
    parameters = {"type": "object"} if tool.parameters is None else tool.parameters
    return FunctionTool(tool.name or "", tool.description, parameters, bool(tool.strict))


def _choice(asked: str | dict[str, Any] | None) -> ToolChoice:
    if asked is None:
        return AUTO
    if isinstance(asked, str):
        choice = CHOICES.get(asked)
    else:
        kind, name = asked.get("type"), asked.get("name")
        if isinstance(kind, str) and kind != "function":
            raise ApiError(
                400,
                f"tool_choice of type {kind[:40]!r} is not supported.",
                param="tool_choice",
                code="unsupported_parameter",
            )
        named = kind == "function" and isinstance(name, str)
        choice = ToolChoice("named", name) if named else None
    if choice is None:
        raise bad_field("tool_choice", "must be 'none', 'auto', 'required' or name a function")
    return choice
