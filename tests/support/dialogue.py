"""Conversations with tools and reasoning on the scripted model."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

from engine.types import EngineClient
from tests.support.api import Api, Events, serving_api, stream_events
from tests.support.scripted import ScriptedEngine
from tests.support.words import piece_ids, text_assets

CHAT = "/v1/chat/completions"
HI: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "w",
        "description": "Weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 6}, "n": {"enum": [1, 2]}},
            "required": ["city", "n"],
            "additionalProperties": False,
        },
    },
}
OTHER: dict[str, Any] = {"type": "function", "function": {"name": "other"}}

TOOL_TEMPLATE = (
    "{% if tools %}{% for t in tools %}[{{ t.function.name }}]{% endfor %}<tool_call>{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}<{{ c.function.name }}|{{ c.function.arguments.city }}>"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
THINK_TEMPLATE = TOOL_TEMPLATE.replace(
    "assistant\n",
    "assistant\n{% if enable_thinking is defined %}"
    "{% if enable_thinking %}<think>\n{% else %}<think>\n\n</think>\n\n{% endif %}{% endif %}",
)


@asynccontextmanager
async def dialogue_api(
    template: str = TOOL_TEMPLATE,
    *,
    engine: EngineClient | None = None,
    parts: ScriptedEngine | None = None,
    **options: Any,
) -> AsyncIterator[Api]:
    """A server over a scripted model with room for long answers."""
    sizes = {} if parts else {"max_model_len": 1024, "num_blocks": 257, **options}
    text = text_assets(template=template)
    async with serving_api(text=text, engine=engine, parts=parts, **sizes) as api:
        yield api
        await api.idle()


def say(api: Api, text: str, messages: Sequence[Mapping[str, Any]] = HI, **fields: Any) -> None:
    """Make the model answer ``text``, one token per byte, to the prompt that the fields make."""
    template = api.text.chat_template
    assert template is not None
    variables = fields.get("chat_template_kwargs", {})
    prompt = template.render(list(messages), fields.get("tools"), **variables)
    key = tuple(api.text.tokenizer.encode(prompt))
    scripts = cast(dict[tuple[int, ...], Sequence[int]], api.parts.device.behaviour.scripts)
    scripts[key] = piece_ids(text.encode())


async def both(api: Api, **fields: Any) -> tuple[dict[str, Any], Events]:
    """One choice, whole and streamed; asserts that they agree and that the stream is in form."""
    fields = {"messages": HI, **fields}
    answer = await api.chat(return_token_ids=True, **fields)
    assert answer.status_code == 200, answer.text
    [choice] = answer.json()["choices"]
    events = await stream_events(api.http, CHAT, {"return_token_ids": True, **fields})
    assert events.done
    chunks = events.of()
    assert [c["finish_reason"] for c in chunks if c["finish_reason"]] == [choice["finish_reason"]]
    assert [i for c in chunks for i in c.get("token_ids", [])] == choice["token_ids"]
    message, joined = choice["message"], joined_message(events)
    assert joined["content"] == (message["content"] or "")
    assert joined["reasoning_content"] == message.get("reasoning_content", "")
    assert joined["calls"] == [
        (call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls", [])
    ]
    return choice, events


def joined_message(events: Events, index: int = 0) -> dict[str, Any]:
    """What the deltas of a choice add up to; asserts the form of tool call deltas."""
    content = reasoning = ""
    calls: list[list[str]] = []
    for chunk in events.of(index):
        delta = chunk["delta"]
        content += delta.get("content") or ""
        reasoning += delta.get("reasoning_content") or ""
        for part in delta.get("tool_calls", []):
            if part["index"] == len(calls):
                assert set(part) == {"index", "id", "type", "function"}
                assert set(part["function"]) == {"name", "arguments"}
                calls.append([part["function"]["name"], part["function"]["arguments"]])
            else:
                assert part["index"] == len(calls) - 1
                assert set(part) == {"index", "function"}
                assert set(part["function"]) == {"arguments"}
                calls[-1][1] += part["function"]["arguments"]
    return {
        "content": content,
        "reasoning_content": reasoning,
        "calls": [(name, arguments) for name, arguments in calls],
    }
