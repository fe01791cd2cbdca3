"""Body of ``POST /v1/responses``: request and refused fields."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from app.protocol.body import JsonObject, Refused, RequestModel
from app.protocol.responses_items import Items
from app.protocol.sampling import (
    Alternatives,
    CacheSalt,
    MinP,
    Priority,
    RepetitionPenalty,
    Seed,
    Temperature,
    TopK,
    TopP,
)
from app.protocol.structured import Name
from app.protocol.tools import MAX_TOOLS

MAX_METADATA = 16
MESSAGE_LOGPROBS = "message.output_text.logprobs"

Label = Annotated[str, Field(max_length=64)]
Note = Annotated[str, Field(max_length=512)]


class ResponseTool(RequestModel):
    """A function that the model may call. Tools of other types are refused by name."""

    type: str
    name: Name | None = None
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None

    @model_validator(mode="after")
    def _function(self) -> "ResponseTool":
        if self.type != "function":
            raise ValueError(f"tools of type {self.type[:40]!r} are not supported")
        if self.name is None:
            raise ValueError("a function needs the field 'name'")
        if (self.parameters or {}).get("type", "object") != "object":
            raise ValueError("parameters must be a JSON schema of type 'object'")
        if (self.model_extra or {}).get("defer_loading"):
            raise ValueError("the field 'defer_loading' of a tool is not supported")
        return self


class TextFormat(RequestModel):
    """What the text of the answer must be: anything, JSON, or JSON of a schema."""

    type: Literal["text", "json_object", "json_schema"]
    name: Name | None = None
    description: str | None = None
    schema_: JsonObject | None = Field(None, alias="schema")
    strict: bool | None = None

    @model_validator(mode="after")
    def _complete(self) -> "TextFormat":
        if self.type == "json_schema" and (self.name is None or self.schema_ is None):
            raise ValueError("a format of type 'json_schema' needs the fields 'name' and 'schema'")
        return self


class TextConfig(RequestModel):
    """How the text of the answer is written."""

    format: TextFormat | None = None
    verbosity: str | None = None

    @model_validator(mode="after")
    def _medium(self) -> "TextConfig":
        if self.verbosity not in (None, "medium"):
            raise ValueError(f"verbosity {self.verbosity[:40]!r} is not supported")
        return self


class ReasoningConfig(RequestModel):
    """Whether the model thinks before it answers."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None

    @model_validator(mode="after")
    def _no_more(self) -> "ReasoningConfig":
        for name, value in (self.model_extra or {}).items():
            if value is not None and (name, value) != ("mode", "standard"):
                raise ValueError(f"the field {name[:40]!r} is not supported")
        return self


class ResponseStreamOptions(RequestModel):
    """Options of a streamed response."""

    include_obfuscation: bool | None = None


class ResponseRequest(RequestModel):
    """The body that creates a response. None always means: not given."""

    model: str
    input: str | Items
    instructions: str | None = None
    previous_response_id: str | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    store: bool | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    text: TextConfig | None = None
    tools: Annotated[list[ResponseTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: str | JsonObject | None = None
    parallel_tool_calls: bool | None = None
    include: list[str] | None = None
    top_logprobs: Alternatives | None = None
    reasoning: ReasoningConfig | None = None
    metadata: Annotated[dict[Label, Note], Field(max_length=MAX_METADATA)] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    seed: Seed | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    repetition_penalty: RepetitionPenalty | None = None
    cache_salt: CacheSalt | None = None
    priority: Priority | None = None
    chat_template_kwargs: JsonObject | None = None


CHAT_FIELD = "is a field of chat completions"
RESPONSE_REFUSED: dict[str, Refused] = {
    "background": Refused((False,)),
    "conversation": Refused(),
    "prompt": Refused(),
    "context_management": Refused(([],)),
    "max_tool_calls": Refused((), "is not supported: it is for OpenAI's own tools"),
    "moderation": Refused(),
    "truncation": Refused(("disabled",)),
    "service_tier": Refused(("auto", "default")),
    "prompt_cache_options": Refused(),
    "prompt_cache_retention": Refused(("in_memory",)),
    "background_options": Refused(),
    "access_programs": Refused(),
    "image": Refused(),
    "messages": Refused((), CHAT_FIELD + "; use input"),
    "max_tokens": Refused((), CHAT_FIELD + "; use max_output_tokens"),
    "max_completion_tokens": Refused((), CHAT_FIELD + "; use max_output_tokens"),
    "response_format": Refused((), CHAT_FIELD + "; use text.format"),
    "n": Refused((1,)),
    "stop": Refused(([],)),
    "logprobs": Refused((False,), CHAT_FIELD + f"; use include with {MESSAGE_LOGPROBS!r}"),
    "logit_bias": Refused(({},)),
    "presence_penalty": Refused((0,)),
    "frequency_penalty": Refused((0,)),
    "reasoning_effort": Refused((), CHAT_FIELD + "; use reasoning.effort"),
}
"""Fields of OpenAI and of other servers that change an answer and that are not supported."""
