"""Answers of ``/tokenize`` and ``/detokenize``."""

from typing import Any

from app.errors import ApiError
from app.protocol.tokenize import DetokenizeRequest, TokenizeRequest
from app.serving.context import ServingContext
from app.serving.prompts import chat_prompt, check_ids, sized
from app.serving.rules import asked_tools


async def tokenize(context: ServingContext, request: TokenizeRequest) -> dict[str, Any]:
    """Count and ids of a text, or of messages as a chat completion would render them."""
    context.check_model(request.model)
    ids = await _ids(context, request)
    body: dict[str, Any] = {
        "count": len(ids),
        "max_model_len": context.engine.model.context_length,
        "tokens": ids,
    }
    if request.return_token_strs:
        text = context.text.tokenizer.token_text
        body["token_strs"] = await sized(len(ids), lambda: list(map(text, ids)))
    return body


async def detokenize(context: ServingContext, request: DetokenizeRequest) -> dict[str, Any]:
    """The text of token ids."""
    context.check_model(request.model)
    tokenizer, ids = context.text.tokenizer, request.tokens
    check_ids(ids, tokenizer.vocab_size, "tokens")
    skip = bool(request.skip_special_tokens)
    return {"prompt": await sized(len(ids), lambda: tokenizer.decode(ids, skip_special=skip))}


async def _ids(context: ServingContext, request: TokenizeRequest) -> tuple[int, ...]:
    add_special = request.add_special_tokens is not False
    prompt, messages = request.prompt, request.messages
    if (prompt is None) == (messages is None):
        raise ApiError(400, "Give either prompt or messages.", param="prompt")
    if messages is not None:
        if request.parse_special_tokens is False:
            reason = "parse_special_tokens is for prompt; a chat template writes special tokens."
            raise ApiError(400, reason, param="parse_special_tokens")
        tools, choice = asked_tools(request)
        offered = () if choice.mode == "none" else tools
        chat = await chat_prompt(context, messages, request, offered, add_special=add_special)
        return chat.ids
    if request.tools:
        raise ApiError(400, "tools are for messages; a prompt is no conversation.", param="tools")
    text = prompt or ""
    tokenizer, parse = context.text.tokenizer, request.parse_special_tokens is not False
    return await sized(
        len(text),
        lambda: tuple(tokenizer.encode(text, add_special=add_special, parse_special=parse)),
    )
