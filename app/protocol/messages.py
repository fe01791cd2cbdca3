"""Bodies of ``/v1/messages`` and ``/v1/messages/count_tokens``: requests and refused fields."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from app.protocol.body import JsonObject, Refused, RequestModel
from app.protocol.chat import MAX_MESSAGES
from app.protocol.messages_blocks import TextBlocks, Turn
from app.protocol.sampling import TopP, stop_strings
from app.protocol.tools import MAX_TOOLS

MIN_THINKING = 1024


class Tool(RequestModel):
    """A tool of the client. Anthropic's own tools are refused by name."""

    type: str | None = None
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,128}$")]
    description: str | None = None
    input_schema: JsonObject | None = None
    strict: bool | None = None

    @model_validator(mode="after")
    def _custom(self) -> "Tool":
        if self.type not in (None, "custom"):
            raise ValueError(f"tools of type {self.type[:40]!r} are not supported")
        if self.input_schema is None:
            raise ValueError("a tool needs the field 'input_schema'")
        if self.input_schema.get("type", "object") != "object":
            raise ValueError("input_schema must be of type 'object'")
        if (self.model_extra or {}).get("defer_loading"):
            raise ValueError("the field 'defer_loading' of a tool is not supported")
        return self


class ToolChoice(RequestModel):
    """auto: as the model likes; any: at least one; tool: the one named; none: no tool."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(RequestModel):
    """Whether the model thinks before it answers."""

    type: Literal["disabled", "enabled", "adaptive"]
    budget_tokens: Annotated[int, Field(ge=MIN_THINKING)] | None = None

    @model_validator(mode="after")
    def _budget(self) -> "Thinking":
        if (self.type == "enabled") != (self.budget_tokens is not None):
            raise ValueError("budget_tokens belongs to type 'enabled', which needs it")
        return self


class OutputFormat(RequestModel):
    """JSON of a schema."""

    type: Literal["json_schema"]
    schema_: JsonObject = Field(alias="schema")


class OutputConfig(RequestModel):
    """How the answer is written."""

    format: OutputFormat | None = None

    @model_validator(mode="after")
    def _no_effort(self) -> "OutputConfig":
        for name, value in (self.model_extra or {}).items():
            if value is not None:
                raise ValueError(f"the field {name[:40]!r} is not supported")
        return self


class Metadata(RequestModel):
    """Labels of the caller; they change nothing and are not kept."""

    user_id: str | None = None


class PromptFields(RequestModel):
    """What makes the prompt of a message: the fields of both endpoints."""

    model: str
    messages: Annotated[list[Turn], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    system: str | TextBlocks | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None


class CountRequest(PromptFields):
    """The body of a token count."""


class MessageRequest(PromptFields):
    """The body that creates a message. None always means: not given."""

    max_tokens: Annotated[int, Field(ge=1)]
    stream: bool | None = None
    stop_sequences: Annotated[Any, BeforeValidator(stop_strings)] = None
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_p: TopP | None = None
    top_k: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    metadata: Metadata | None = None


COUNT_REFUSED: dict[str, Refused] = {
    "mcp_servers": Refused(([],)),
    "context_management": Refused(),
    "speed": Refused(("standard",)),
}
MESSAGE_REFUSED: dict[str, Refused] = {
    **COUNT_REFUSED,
    "container": Refused(),
    "diagnostics": Refused(),
    "inference_geo": Refused(),
    "service_tier": Refused(("auto", "standard_only")),
    "prompt": Refused((), "is not supported; use messages"),
    "max_tokens_to_sample": Refused((), "is not supported; use max_tokens"),
}
"""Fields of Anthropic's API that change an answer and that are not supported."""
