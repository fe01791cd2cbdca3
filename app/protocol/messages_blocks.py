"""Content blocks of ``/v1/messages``: text, thinking, tool use and tool results."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, Tag

from app.protocol.body import JsonObject, RequestModel, member

MAX_BLOCKS = 4096


class TextBlock(RequestModel):
    """Text. ``cache_control`` asks for what the prefix cache does anyway."""

    type: Literal["text"]
    text: str


class ThinkingBlock(RequestModel):
    """What an earlier turn of the model thought."""

    type: Literal["thinking"]
    thinking: str


class ToolUseBlock(RequestModel):
    """A call that an earlier turn of the model made."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: JsonObject


def _named(*types: str) -> BeforeValidator:
    """Refuse blocks of other types by name."""

    def check(value: object) -> object:
        kind = value.get("type") if isinstance(value, dict) else None
        if isinstance(kind, str) and kind not in types:
            raise ValueError(f"content blocks of type {kind[:40]!r} are not supported here")
        return value

    return BeforeValidator(check)


OnlyText = Annotated[TextBlock, _named("text")]
TextBlocks = Annotated[list[OnlyText], Field(max_length=MAX_BLOCKS, fail_fast=True)]


class ToolResultBlock(RequestModel):
    """What the tool answered. is_error: the content says why the call failed."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: str | TextBlocks | None = None
    is_error: bool | None = None


Text = Annotated[TextBlock, Tag("[text]")]
UserBlock = Text | Annotated[ToolResultBlock, Tag("[tool_result]")]
AssistantBlock = (
    Text | Annotated[ThinkingBlock, Tag("[thinking]")] | Annotated[ToolUseBlock, Tag("[tool_use]")]
)
USER_TYPES, ASSISTANT_TYPES = ("text", "tool_result"), ("text", "thinking", "tool_use")
UserContent = Annotated[Annotated[UserBlock, member("type", *USER_TYPES)], _named(*USER_TYPES)]
AssistantContent = Annotated[
    Annotated[AssistantBlock, member("type", *ASSISTANT_TYPES)], _named(*ASSISTANT_TYPES)
]
UserBlocks = Annotated[list[UserContent], Field(max_length=MAX_BLOCKS, fail_fast=True)]
AssistantBlocks = Annotated[list[AssistantContent], Field(max_length=MAX_BLOCKS, fail_fast=True)]


class UserTurn(RequestModel):
    """What the user says, and what tools answered."""

    role: Literal["user"]
    content: str | UserBlocks


class AssistantTurn(RequestModel):
    """What the model said; as the last turn, what it is to go on with."""

    role: Literal["assistant"]
    content: str | AssistantBlocks


class SystemTurn(RequestModel):
    """An instruction within the conversation."""

    role: Literal["system"]
    content: str | TextBlocks


Turn = Annotated[
    Annotated[UserTurn, Tag("[user]")]
    | Annotated[AssistantTurn, Tag("[assistant]")]
    | Annotated[SystemTurn, Tag("[system]")],
    member("role", "user", "assistant", "system"),
]
