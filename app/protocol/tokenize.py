"""Bodies of ``/tokenize`` and ``/detokenize``."""

from typing import Annotated

from pydantic import Field

from app.protocol.body import Refused, RequestModel
from app.protocol.chat import Messages, TemplateFields
from app.protocol.tools import ToolFields

MAX_TOKENS = 1 << 20


class TokenizeRequest(TemplateFields, ToolFields):
    """Text or messages to turn into token ids: exactly one of ``prompt`` and ``messages``."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    parse_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(RequestModel):
    """Token ids to turn into text."""

    model: str | None = None
    tokens: Annotated[list[int], Field(max_length=MAX_TOKENS, fail_fast=True)]
    skip_special_tokens: bool | None = None


TOKENIZE_REFUSED: dict[str, Refused] = {
    "chat_template": Refused(),
    "mm_processor_kwargs": Refused(({},)),
}
