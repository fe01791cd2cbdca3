"""Bodies of ``/v1/chat/completions``: messages, request, refused fields."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from app.protocol.body import JsonObject, Refused, RequestModel
from app.protocol.sampling import REFUSED, Alternatives, GenerationFields
from app.protocol.tools import ToolFields

MAX_MESSAGES = 4096


class ContentPart(RequestModel):
    """One part of a message. Only text is understood."""

    type: str
    text: str | None = None
    refusal: str | None = None

    @model_validator(mode="after")
    def _only_text(self) -> "ContentPart":
        if self.type not in {"text", "refusal"}:
            raise ValueError(f"content parts of type {self.type[:40]!r} are not supported")
        if self.plain is None:
            raise ValueError(f"a part of type {self.type!r} needs the field {self.type!r}")
        return self

    @property
    def plain(self) -> str | None:
        """The part's text."""
        return self.text if self.type == "text" else self.refusal


class FunctionCall(RequestModel):
    """A function's name and its arguments as JSON text."""

    name: str
    arguments: str


class ToolCall(RequestModel):
    """A call that an earlier assistant turn made."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(RequestModel):
    """One turn of the conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[ContentPart], Field(fail_fast=True)] | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True)] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None

    @model_validator(mode="after")
    def _coherent(self) -> "Message":
        extra = self.model_extra or {}
        for field in ("audio", "function_call"):
            if extra.get(field) is not None:
                raise ValueError(f"the field {field!r} of a message is not supported")
        if self.role != "assistant" and (self.tool_calls or self.reasoning_content):
            raise ValueError("only an assistant message may have tool_calls or reasoning_content")
        if self.content is None and not self._may_be_empty:
            raise ValueError(f"a message of role {self.role!r} needs content")
        return self

    @property
    def _may_be_empty(self) -> bool:
        return self.role == "assistant" and bool(self.tool_calls or self.refusal)

    @property
    def text(self) -> str:
        """The content as one text; parts are joined by a newline; null is empty."""
        if isinstance(self.content, str):
            return self.content
        if self.content is None:
            return self.refusal or ""
        return "\n".join(part.plain or "" for part in self.content)


class TemplateFields(RequestModel):
    """How messages are rendered into a prompt."""

    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: JsonObject | None = None


Messages = Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]


class ChatRequest(GenerationFields, TemplateFields, ToolFields):
    """The body of a chat completion."""

    messages: Messages
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Alternatives | None = None
    metadata: dict[str, str] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


CHAT_REFUSED: dict[str, Refused] = {
    **REFUSED,
    "functions": Refused(([],)),
    "function_call": Refused(("none", "auto")),
    "modalities": Refused((["text"],)),
    "audio": Refused(),
    "prediction": Refused(),
    "reasoning_effort": Refused(("none",)),
    "verbosity": Refused(("medium",)),
    "web_search_options": Refused(),
    "chat_template": Refused(),
    "documents": Refused(([],)),
    "mm_processor_kwargs": Refused(({},)),
    "echo": Refused((False,)),
    "best_of": Refused((1,)),
    "add_special_tokens": Refused((False,)),
}
