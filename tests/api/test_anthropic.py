"""``/v1/messages``: whole and streamed, over HTTP and with Anthropic's own client."""

import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import httpx
import pytest_asyncio

from tests.support.api import MODEL, Api
from tests.support.words import piece_ids

PATH = "/v1/messages"
TEXT_EVENTS = [
    "message_start",
    "content_block_start",
    "ping",
    "content_block_delta",
    "content_block_delta",
    "content_block_delta",
    "content_block_stop",
    "message_delta",
    "message_stop",
]
HI: list[Any] = [{"role": "user", "content": "hi"}]


def fields(**more: Any) -> dict[str, Any]:
    return {"model": MODEL, "max_tokens": 20, "temperature": 0, "messages": HI, **more}


async def create(http: httpx.AsyncClient, **more: Any) -> httpx.Response:
    return await http.post(PATH, json=fields(**more))


async def stream(http: httpx.AsyncClient, **more: Any) -> list[dict[str, Any]]:
    """The events of a streamed message; the SSE name of each is its type."""
    async with http.stream("POST", PATH, json=fields(stream=True, **more)) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        raw = (await response.aread()).decode()
    events = []
    for block in raw.split("\n\n")[:-1]:
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


@pytest_asyncio.fixture
async def client(api: Api) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=api.url, api_key="k", max_retries=0) as made:
        yield made


async def test_text(api: Api) -> None:
    api.script(HI, piece_ids("one", " two", " three"))
    answer = await create(api.http, metadata={"user_id": "me"})
    body = answer.json()
    assert answer.headers["request-id"] == answer.headers["x-request-id"]
    assert (body["type"], body["role"], body["model"]) == ("message", "assistant", MODEL)
    assert body["content"] == [{"type": "text", "text": "one two three"}]
    assert (body["stop_reason"], body["stop_sequence"]) == ("end_turn", None)
    assert body["usage"]["output_tokens"] == 4
    assert body["usage"]["cache_read_input_tokens"] == 0


async def test_event_order(api: Api) -> None:
    api.script(HI, piece_ids("one", " two", " three"))
    events = await stream(api.http)
    assert [event["type"] for event in events] == TEXT_EVENTS
    assert "".join(event["delta"]["text"] for event in events[3:6]) == "one two three"
    start = events[0]["message"]
    assert (start["content"], start["stop_reason"]) == ([], None)
    assert start["usage"]["input_tokens"] > 0
    assert start["usage"]["output_tokens"] == 0
    assert events[7]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert events[7]["usage"]["output_tokens"] == 4
    assert "error" not in events[7]


async def test_stop_reasons(api: Api) -> None:
    api.script(HI, piece_ids("one", " two", " three"))
    for more, reason, stop, text in [
        ({"max_tokens": 2}, "max_tokens", None, "one two"),
        ({"stop_sequences": ["x", " th"]}, "stop_sequence", " th", "one two"),
        ({}, "end_turn", None, "one two three"),
    ]:
        body = (await create(api.http, **more)).json()
        events = await stream(api.http, **more)
        assert (body["stop_reason"], body["stop_sequence"]) == (reason, stop)
        assert events[-2]["delta"] == {"stop_reason": reason, "stop_sequence": stop}
        assert body["content"][0]["text"] == text
        deltas = [e["delta"]["text"] for e in events if e["type"] == "content_block_delta"]
        assert "".join(deltas) == text


async def test_max_tokens_beyond_the_context_is_told(api: Api) -> None:
    body = (await create(api.http, max_tokens=100_000)).json()
    assert body["stop_reason"] == "model_context_window_exceeded"
    assert body["usage"]["input_tokens"] + body["usage"]["output_tokens"] == 256


async def test_sdk_round_trip(api: Api, client: anthropic.AsyncAnthropic) -> None:
    api.script(HI, piece_ids("one", " two"))
    ask: dict[str, Any] = {
        "model": MODEL,
        "max_tokens": 20,
        "messages": HI,
        "extra_body": {"temperature": 0},
    }
    message = await client.messages.create(**ask)
    assert message.content[0].text == "one two"
    assert message._request_id is not None and message._request_id.startswith("req_")
    async with client.messages.stream(**ask) as events:
        text = "".join([part async for part in events.text_stream])
        final = await events.get_final_message()
    assert text == final.content[0].text == "one two"
    assert (final.stop_reason, final.usage.output_tokens) == ("end_turn", 3)
    counted = await client.messages.count_tokens(model=MODEL, messages=HI)
    total = message.usage.input_tokens + message.usage.cache_read_input_tokens
    assert counted.input_tokens == total


async def test_turns_make_the_conversation(api: Api) -> None:
    """System blocks and user turns that follow each other are joined."""
    told = [
        {"role": "system", "content": "S\nT"},
        {"role": "user", "content": "a\nb\nc"},
        {"role": "assistant", "content": "d\ne"},
        {"role": "user", "content": "f"},
    ]
    api.script(told, piece_ids("ABC"))

    def texts(*parts: str) -> list[dict[str, Any]]:
        cached = {"cache_control": {"type": "ephemeral"}}
        return [{"type": "text", "text": text, **cached} for text in parts]

    turns = [
        {"role": "user", "content": texts("a", "b")},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": texts("d", "e")},
        {"role": "user", "content": "f"},
    ]
    body = (await create(api.http, system=texts("S", "T"), messages=turns)).json()
    assert body["content"][0]["text"] == "ABC"


async def test_the_last_turn_of_the_assistant_is_gone_on_with(api: Api) -> None:
    turns = [*HI, {"role": "assistant", "content": "one"}]
    assert api.text.chat_template is not None
    prompt = api.text.chat_template.render(
        turns, add_generation_prompt=False, continue_final_message=True
    )
    api.script_rendered(prompt, piece_ids(" two"))
    body = (await create(api.http, messages=turns)).json()
    assert body["content"] == [{"type": "text", "text": " two"}]


async def test_nothing_said(api: Api) -> None:
    """An end token at once: no block at all, streamed or not."""
    api.script(HI, [])
    body = (await create(api.http)).json()
    assert (body["content"], body["stop_reason"]) == ([], "end_turn")
    events = await stream(api.http)
    assert [e["type"] for e in events] == ["message_start", "message_delta", "message_stop"]


async def test_cached_tokens_are_told_apart(api: Api) -> None:
    turns = [{"role": "user", "content": "x" * 64}]
    first = (await create(api.http, messages=turns)).json()["usage"]
    again = (await create(api.http, messages=turns)).json()["usage"]
    start = (await stream(api.http, messages=turns))[0]["message"]["usage"]
    total = first["input_tokens"]
    assert first["cache_read_input_tokens"] == 0
    for usage in (again, start):
        assert usage["cache_read_input_tokens"] >= 64
        assert usage["cache_read_input_tokens"] + usage["input_tokens"] == total
