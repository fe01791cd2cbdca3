"""Input items of ``/v1/responses``: messages, function calls and their outputs, reasoning."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, Tag, model_validator

from app.protocol.body import JsonObject, RequestModel, member

MAX_ITEMS = 4096
ITEM_TYPES = ("message", "function_call", "function_call_output", "reasoning")
TEXT_PARTS = ("input_text", "output_text", "text")


class InputPart(RequestModel):
    """One part of a message or of a function's output. Only text is understood."""

    type: str
    text: str | None = None
    refusal: str | None = None

    @model_validator(mode="after")
    def _only_text(self) -> "InputPart":
        if self.type not in (*TEXT_PARTS, "refusal"):
            raise ValueError(f"content parts of type {self.type[:40]!r} are not supported")
        name = "refusal" if self.type == "refusal" else "text"
        if getattr(self, name) is None:
            raise ValueError(f"a part of type {self.type!r} needs the field {name!r}")
        return self

    @property
    def plain(self) -> str:
        """The part's text."""
        return (self.refusal if self.type == "refusal" else self.text) or ""


Content = str | Annotated[list[InputPart], Field(fail_fast=True)]


class ItemModel(RequestModel):
    """What all items have. ``status`` tells what a server said of an item; it changes nothing."""

    id: str | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None


class MessageItem(ItemModel):
    """One turn of the conversation; ``type`` may be left out."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Content


class CallItem(ItemModel):
    """A function call that an earlier turn of the model made."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class OutputItem(ItemModel):
    """What the function answered."""

    type: Literal["function_call_output"]
    call_id: str
    output: Content


class ReasoningText(RequestModel):
    """A part of what the model thought."""

    type: Literal["reasoning_text", "text"]
    text: str


class ReasoningItem(ItemModel):
    """What an earlier turn of the model thought."""

    type: Literal["reasoning"]
    summary: list[JsonObject] = Field(default_factory=list)
    content: list[ReasoningText] | None = None

    @model_validator(mode="after")
    def _readable(self) -> "ReasoningItem":
        if (self.model_extra or {}).get("encrypted_content") is not None:
            raise ValueError("the field 'encrypted_content' of an item is not supported")
        return self


def _item_type(value: object) -> object:
    """Name a missing type, and refuse the types of OpenAI's hosted tools by name."""
    if not isinstance(value, dict):
        return value
    kind = value.get("type")
    if kind is None:
        return {**value, "type": "message"}
    if kind not in ITEM_TYPES:
        raise ValueError(f"items of type {str(kind)[:40]!r} are not supported")
    return value


Item = MessageItem | CallItem | OutputItem | ReasoningItem
Tagged = (
    Annotated[MessageItem, Tag("[message]")]
    | Annotated[CallItem, Tag("[function_call]")]
    | Annotated[OutputItem, Tag("[function_call_output]")]
    | Annotated[ReasoningItem, Tag("[reasoning]")]
)
InputItem = Annotated[
    Annotated[Tagged, member("type", *ITEM_TYPES)],
    BeforeValidator(_item_type, json_schema_input_type=Item),
]
Items = Annotated[list[InputItem], Field(min_length=1, max_length=MAX_ITEMS, fail_fast=True)]
