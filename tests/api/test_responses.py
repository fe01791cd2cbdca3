"""``/v1/responses``: whole and streamed, over HTTP and with OpenAI's own client."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio

from tests.support.api import MODEL, Api
from tests.support.words import piece_ids

PATH = "/v1/responses"
TEXT_EVENTS = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.delta",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.completed",
]


def user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


async def create(http: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    return await http.post(PATH, json={"model": MODEL, "temperature": 0, **fields})


async def stream(http: httpx.AsyncClient, **fields: Any) -> list[dict[str, Any]]:
    """The events of a streamed response; the SSE name of each is its type."""
    body = {"model": MODEL, "temperature": 0, "stream": True, **fields}
    async with http.stream("POST", PATH, json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        raw = (await response.aread()).decode()
    blocks = [b for b in raw.split("\n\n")[:-1] if not b.startswith(":")]
    events = []
    for block in blocks:
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


@pytest_asyncio.fixture
async def client(api: Api) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{api.url}/v1", api_key="k", max_retries=0) as made:
        yield made


async def test_text(api: Api) -> None:
    api.script(user("hi"), piece_ids("one", " two", " three"))
    body = (await create(api.http, input="hi", metadata={"a": "b"}, user="me")).json()
    assert (body["object"], body["status"], body["model"]) == ("response", "completed", MODEL)
    (item,) = body["output"]
    assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "completed")
    assert item["content"] == [
        {"type": "output_text", "text": "one two three", "annotations": [], "logprobs": []}
    ]
    assert body["usage"]["output_tokens"] == 4
    assert body["usage"]["total_tokens"] == body["usage"]["input_tokens"] + 4
    assert body["usage"]["output_tokens_details"] == {"reasoning_tokens": 0}
    assert (body["metadata"], body["user"], body["temperature"]) == ({"a": "b"}, "me", 0)
    assert body["completed_at"] >= body["created_at"]


async def test_event_order(api: Api) -> None:
    api.script(user("hi"), piece_ids("one", " two", " three"))
    events = await stream(api.http, input="hi")
    assert [event["type"] for event in events] == TEXT_EVENTS
    whole = (await create(api.http, input="hi")).json()
    last = events[-1]["response"]
    text = "".join(event["delta"] for event in events[4:7])
    assert text == whole["output"][0]["content"][0]["text"] == events[7]["text"]
    assert last["output"][0] == events[9]["item"]
    assert events[2]["item"]["id"] == events[9]["item"]["id"] == events[4]["item_id"]
    volatile = ("id", "created_at", "completed_at", "output")
    assert {k: v for k, v in last.items() if k not in (*volatile, "usage")} == {
        k: v for k, v in whole.items() if k not in (*volatile, "usage")
    }
    assert events[0]["response"]["status"] == "in_progress"
    assert events[0]["response"]["output"] == []


async def test_cut_is_incomplete(api: Api) -> None:
    api.script(user("hi"), piece_ids("one", " two", " three"))
    whole = (await create(api.http, input="hi", max_output_tokens=2)).json()
    events = await stream(api.http, input="hi", max_output_tokens=2)
    assert events[-1]["type"] == "response.incomplete"
    for body in (whole, events[-1]["response"]):
        assert body["status"] == "incomplete"
        assert body["incomplete_details"] == {"reason": "max_output_tokens"}
        assert body["output"][0]["status"] == "incomplete"
        assert body["output"][0]["content"][0]["text"] == "one two"
        assert body["completed_at"] is None


async def test_sdk_round_trip(api: Api, client: openai.AsyncOpenAI) -> None:
    api.script(user("hi"), piece_ids("one", " two"))
    made = await client.responses.create(model=MODEL, input="hi", temperature=0)
    assert made.output_text == "one two"
    assert (await client.responses.retrieve(made.id)).output_text == "one two"
    async with client.responses.stream(model=MODEL, input="hi", temperature=0) as events:
        kinds = [event.type async for event in events]
        final = await events.get_final_response()
    assert (
        kinds
        == [kind for kind in TEXT_EVENTS if kind != "response.output_text.delta"][:4]
        + ["response.output_text.delta"] * 2
        + TEXT_EVENTS[7:]
    )
    assert final.output_text == "one two"
    await client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(made.id)


def test_a_start_imports_none_of_it() -> None:
    """The models of both families are built by the first request for them."""
    families = ("app.protocol.responses", "app.protocol.messages", "app.serving.responses")
    code = f"import sys, app.main; print(*(m for m in {families} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


async def test_items_make_the_conversation(api: Api) -> None:
    """Parts are joined; text of the assistant may come as output_text."""
    told = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "c"},
        {"role": "user", "content": "d"},
    ]
    api.script(told, piece_ids("ABC"))
    parts = [{"type": "input_text", "text": text} for text in "ab"]
    said = [{"type": "output_text", "text": "c", "annotations": []}]
    body = (
        await create(
            api.http,
            instructions="S",
            input=[
                {"role": "user", "content": parts},
                {"type": "message", "role": "assistant", "content": said, "id": "msg_1"},
                {"role": "user", "content": "d"},
            ],
        )
    ).json()
    assert body["output"][0]["content"][0]["text"] == "ABC"
    assert body["instructions"] == "S"


async def test_output_can_be_sent_back_as_input(api: Api, client: openai.AsyncOpenAI) -> None:
    api.script(user("hi"), piece_ids("one"))
    api.script([*user("hi"), {"role": "assistant", "content": "one"}, *user("b")], piece_ids("HI"))
    first = await client.responses.create(model=MODEL, input="hi", temperature=0)
    items: list[Any] = [*user("hi"), *first.output, *user("b")]
    second = await client.responses.create(model=MODEL, input=items, temperature=0)
    assert second.output_text == "HI"


async def test_obfuscation_is_off_unless_asked_for(api: Api) -> None:
    plain = await stream(api.http, input="hi", max_output_tokens=3)
    padded = await stream(
        api.http,
        input="hi",
        max_output_tokens=3,
        stream_options={"include_obfuscation": True},
    )
    assert not any("obfuscation" in event for event in plain)
    deltas = [event for event in padded if event["type"].endswith(".delta")]
    assert deltas and all(event["obfuscation"] for event in deltas)
    assert [event["type"] for event in plain] == [event["type"] for event in padded]
