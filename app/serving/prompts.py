"""Prompts as token ids: chat rendering and tokenization, off the event loop when long."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from msgspec import Struct

from app.errors import ApiError, bad_field
from app.protocol.chat import Message, TemplateFields, ToolCall
from app.protocol.completions import Prompt
from app.protocol.tools import FunctionTool
from app.serving.context import ServingContext
from engine.text.assets import TextAssets
from engine.text.chat import ChatTemplate

INLINE_CHARACTERS = 16 * 1024
"""Texts up to this length are handled on the event loop, where a thread would cost more."""

RESERVED_KWARGS = frozenset(
    ("self", "messages", "tools", "documents", "add_generation_prompt", "continue_final_message")
)

T = TypeVar("T")


async def sized(characters: int, work: Callable[[], T]) -> T:
    """The result of ``work``, run in a worker thread when its input is long."""
    if characters <= INLINE_CHARACTERS:
        return work()
    return await asyncio.to_thread(work)


class ChatPrompt(Struct, frozen=True):
    """A rendered conversation, and its token ids."""

    text: str
    ids: tuple[int, ...]


async def chat_prompt(
    context: ServingContext,
    messages: Sequence[Message],
    fields: TemplateFields,
    tools: Sequence[FunctionTool] = (),
    *,
    add_special: bool = True,
) -> ChatPrompt:
    """Render the messages with the model's template and tokenize the result.

    Raises ApiError (400) when the model has no template or the fields contradict each other, and
    TemplateError with the template's own sentence.
    """
    text = context.text
    template = text.chat_template
    if template is None:
        raise ApiError(
            400, "This model has no chat template; use /v1/completions.", param="messages"
        )
    check_template_fields(messages, fields)
    offered = [tool.as_json() for tool in tools]

    def work() -> ChatPrompt:
        rendered = render(template, messages, fields, offered)
        return ChatPrompt(rendered, tuple(text.tokenizer.encode(rendered, add_special=add_special)))

    size = sum(map(_size, messages)) + (len(str(offered)) if offered else 0)
    return await sized(size, work)


def check_template_fields(messages: Sequence[Message], fields: TemplateFields) -> None:
    """Refuse contradictions. Raises ApiError (400) naming the field."""
    if fields.continue_final_message and fields.add_generation_prompt:
        raise bad_field("continue_final_message", "and add_generation_prompt exclude each other")
    if fields.continue_final_message and messages[-1].role != "assistant":
        raise bad_field("continue_final_message", "needs a last message of role assistant")
    taken = RESERVED_KWARGS.intersection(fields.chat_template_kwargs or {})
    if taken:
        raise bad_field("chat_template_kwargs", f"must not set {min(taken)}")


def render(
    template: ChatTemplate,
    messages: Sequence[Message],
    fields: TemplateFields,
    tools: Sequence[Mapping[str, Any]] = (),
) -> str:
    """The prompt text of a conversation; tools that the template does not know are told in it."""
    generate = fields.add_generation_prompt
    if generate is None:
        generate = not fields.continue_final_message
    turns = [_turn(message) for message in messages]
    if tools and not template.knows_tools:
        # Only requests with tools need this.
        from app.serving.tools.prompt import with_tools

        turns, tools = with_tools(turns, tools, system=template.knows_system), ()
    return template.render(
        turns,
        tools or None,
        add_generation_prompt=generate,
        continue_final_message=bool(fields.continue_final_message),
        **(fields.chat_template_kwargs or {}),
    )


async def completion_prompts(
    context: ServingContext, prompts: Sequence[Prompt], *, add_special: bool
) -> list[tuple[int, ...]]:
    """Token ids of each prompt. Raises ApiError (400, param prompt) for empty ones."""
    size = sum(map(len, prompts))

    def work() -> list[tuple[int, ...]]:
        return [_ids(context.text, prompt, add_special) for prompt in prompts]

    encoded = await sized(size, work)
    if not all(encoded):
        raise bad_field("prompt", "has no tokens")
    return encoded


def check_ids(ids: Sequence[int], vocab_size: int, param: str) -> None:
    """Raise ApiError (400) unless every id is in the vocabulary."""
    if ids and not 0 <= min(ids) <= max(ids) < vocab_size:
        raise bad_field(param, f"has token ids outside 0 to {vocab_size - 1}")


def _ids(text: TextAssets, prompt: Prompt, add_special: bool) -> tuple[int, ...]:
    if isinstance(prompt, str):
        return tuple(text.tokenizer.encode(prompt, add_special=add_special))
    check_ids(prompt, text.tokenizer.vocab_size, "prompt")
    return prompt


def _turn(message: Message) -> dict[str, Any]:
    """A message as templates expect it; ``developer`` is OpenAI's newer word for ``system``.

    Content is null only beside tool calls, which the template's renderer knows how to treat.
    """
    calls = message.tool_calls
    return {
        "role": "system" if message.role == "developer" else message.role,
        "content": None if message.content is None and calls else message.text,
        "tool_calls": [_call(call) for call in calls] if calls else None,
        "name": message.name,
        "tool_call_id": message.tool_call_id,
        "reasoning_content": message.reasoning_content,
    }


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.function.name, "arguments": call.function.arguments}
    return {"id": call.id, "type": call.type, "function": function}


def _size(message: Message) -> int:
    calls = sum(len(call.function.arguments) for call in message.tool_calls or ())
    return len(message.text) + calls
