"""Tools that a request offers, and which of them the model is to call."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Struct, field
from pydantic import BeforeValidator, Field

from app.protocol.body import RequestModel, writable

MAX_TOOLS = 128
MAX_DESCRIPTION = 16 * 1024
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")

Mode = Literal["none", "auto", "required", "named"]


class FunctionTool(Struct, frozen=True):
    """A function that the model may call. ``parameters``: the JSON schema of its arguments."""

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object"})
    strict: bool = False

    def as_json(self) -> dict[str, Any]:
        """The tool as chat templates expect it."""
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        function["parameters"] = self.parameters
        return {"type": "function", "function": function}


class ToolChoice(Struct, frozen=True):
    """none: no call; auto: as the model likes; required: at least one; named: ``name`` alone."""

    mode: Mode = "auto"
    name: str | None = None

    @property
    def forced(self) -> bool:
        """Whether there must be a call."""
        return self.mode in ("required", "named")


AUTO = ToolChoice()
CHOICES: dict[str, ToolChoice] = {
    "none": ToolChoice("none"),
    "auto": AUTO,
    "required": ToolChoice("required"),
}


def parse_tools(value: object) -> tuple[FunctionTool, ...]:
    """The tools of a request, as chat completions write them. Raises ValueError with the reason."""
    if value is None:
        return ()
    if not isinstance(value, list):
        raise ValueError("must be an array of tools")
    if len(value) > MAX_TOOLS:
        raise ValueError(f"must hold at most {MAX_TOOLS} tools")
    return tuple(map(_tool, value))


def parse_choice(value: object) -> ToolChoice | None:
    """Which tool is to be called, in the form of chat completions; None: it is not said.

    Raises ValueError with the reason.
    """
    if value is None:
        return None
    if isinstance(value, str) and value in CHOICES:
        return CHOICES[value]
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind != "function":
        raise ValueError(f"of type {kind[:40]!r} is not supported")
    function = value.get("function") if isinstance(value, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if kind is None or not isinstance(name, str):
        raise ValueError("must be 'none', 'auto', 'required' or name a function")
    return ToolChoice("named", name)


def _tool(value: object) -> FunctionTool:
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(kind, str):
        raise ValueError("must hold objects with a type")
    if kind != "function":
        raise ValueError(f"of type {kind[:40]!r} are not supported")
    function = value.get("function")
    if not isinstance(function, dict):
        raise ValueError("of type 'function' need the field 'function'")
    return _function(function)


def _function(value: Mapping[str, Any]) -> FunctionTool:
    name, description = value.get("name"), value.get("description")
    parameters, strict = value.get("parameters"), value.get("strict")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError("need a name of 1 to 64 letters, digits, underscores and hyphens")
    if description is not None and not isinstance(description, str):
        raise ValueError(f"need a text as description: {name}")
    if len(description or "") > MAX_DESCRIPTION:
        raise ValueError(f"need descriptions of at most {MAX_DESCRIPTION} characters: {name}")
    if strict is not None and not isinstance(strict, bool):
        raise ValueError(f"need true or false as strict: {name}")
    return FunctionTool(name, description, _parameters(name, parameters), bool(strict))


def _parameters(name: str, value: object) -> Mapping[str, Any]:
    """The schema of a function's arguments, which are an object."""
    if value is None:
        return {"type": "object", "properties": {}}
    if not isinstance(value, dict) or value.get("type", "object") != "object":
        raise ValueError(f"need a JSON schema of type 'object' as parameters: {name}")
    checked: Mapping[str, Any] = writable(value)
    return checked


def _described(text: str, **schema: Any) -> dict[str, Any]:
    return {"description": text, **schema}


_KIND = _described("always function", const="function")
_TOOLS_SCHEMA = {
    "type": "array",
    "maxItems": MAX_TOOLS,
    "items": {
        "type": "object",
        "required": ["type", "function"],
        "properties": {
            "type": _KIND,
            "function": _described(
                "the function",
                type="object",
                required=["name"],
                properties={
                    "name": _described("its name", type="string", pattern=f"^{_NAME.pattern}$"),
                    "description": _described("what it does", type="string"),
                    "parameters": _described("JSON schema of its arguments", type="object"),
                    "strict": _described("forced calls follow the schema anyway", type="boolean"),
                },
            ),
        },
    },
}
_NAMED = _described(
    "the function to call",
    type="object",
    properties={"name": _described("its name", type="string")},
)
_CHOICE_SCHEMA = {
    "anyOf": [
        {"enum": list(CHOICES)},
        {
            "type": "object",
            "required": ["type", "function"],
            "properties": {"type": _KIND, "function": _NAMED},
        },
    ]
}


class ToolFields(RequestModel):
    """Fields of a chat completion that offer tools; ``serving.rules.asked_tools`` joins them."""

    tools: Annotated[Any, BeforeValidator(parse_tools), Field(json_schema_extra=_TOOLS_SCHEMA)] = (
        None
    )
    tool_choice: Annotated[
        Any, BeforeValidator(parse_choice), Field(json_schema_extra=_CHOICE_SCHEMA)
    ] = None
    parallel_tool_calls: bool | None = None
