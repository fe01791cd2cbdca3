"""Odd values where a field takes any JSON: numbers that are none, deep nesting, surrogates."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.support.api import MODEL, Api, serving_api
from tests.support.dialogue import TOOL_TEMPLATE
from tests.support.words import byte_ids, text_assets

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
HI: list[Any] = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": HI, "max_tokens": 4},
    RESPONSES: {"input": "hi", "max_output_tokens": 4},
    MESSAGES: {"messages": HI, "max_tokens": 4},
}
ODD = "<odd>"  # stands for a value that Python's JSON writer would not write
SCHEMA = {"type": "object", "properties": {"a": {"const": ODD}}}
FUNCTION = {"name": "f", "parameters": SCHEMA}
USE = {"type": "tool_use", "id": "t", "name": "f", "input": {"a": [ODD]}}
PLACES: list[tuple[str, str, Any]] = [
    (CHAT, "tools", [{"type": "function", "function": FUNCTION}]),
    (CHAT, "chat_template_kwargs", {"x": {"y": [ODD]}}),
    (CHAT, "logit_bias", {"5": ODD}),
    (
        CHAT,
        "response_format",
        {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
    ),
    (RESPONSES, "tools", [{"type": "function", **FUNCTION}]),
    (RESPONSES, "tool_choice", {"type": "function", "name": "f", "x": ODD}),
    (RESPONSES, "input", [*HI, {"type": "reasoning", "summary": [{"x": ODD}]}]),
    (RESPONSES, "text", {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}),
    (RESPONSES, "chat_template_kwargs", {"x": ODD}),
    (MESSAGES, "tools", [{"name": "f", "input_schema": SCHEMA}]),
    (MESSAGES, "messages", [*HI, {"role": "assistant", "content": [USE]}, *HI]),
    (MESSAGES, "output_config", {"format": {"type": "json_schema", "schema": SCHEMA}}),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api() -> AsyncIterator[Api]:
    """One server for all odd requests: each must leave it whole for the next."""
    async with serving_api(text=text_assets(template=TOOL_TEMPLATE), max_model_len=1024) as running:
        yield running
        await running.idle()


async def send(api: Api, path: str, fields: dict[str, Any], odd: str = "") -> Any:
    """POST the fields with ``odd`` in its place, in any spelling."""
    body = {"model": MODEL, "temperature": 0, **BODIES[path], **fields}
    text = json.dumps(body).replace(f'"{ODD}"', odd)
    return await api.http.post(path, content=text, headers={"content-type": "application/json"})


@pytest.mark.parametrize(("path", "field", "value"), PLACES)
async def test_what_is_no_number_is_refused_by_name(
    api: Api, path: str, field: str, value: Any
) -> None:
    """H16's siblings: NaN has many ways in, and none may end as a 500."""
    for odd in ("NaN", "-Infinity", "1e999", r'"\ud800"'):
        for stream in (False, True):
            answer = await send(api, path, {field: value, "stream": stream}, odd)
            assert answer.status_code == 400, (odd, answer.text)
            error = answer.json()["error"]
            assert error["type"] == "invalid_request_error"
            if "ud800" not in odd:
                assert error["message"].startswith(field)
    await api.alive()


@pytest.mark.parametrize("arguments", ["[" * 5000 + "]" * 5000, '{"a":' * 5000, "9" * 5000, "7"])
async def test_odd_arguments_of_earlier_calls_reach_the_template_as_text(
    api: Api, arguments: str
) -> None:
    """Templates that want an object get the text where there is none; never a 500."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    turns = [*HI, {"role": "assistant", "content": None, "tool_calls": [call]}]
    turns.append({"role": "tool", "tool_call_id": "c", "content": "7"})
    answer = await send(api, CHAT, {"messages": turns})
    assert answer.status_code in (200, 400), answer.text
    await api.alive()


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (r'{"a": "\ud83d"}', {"a": "\ud83d"}),
        (r'{"a": "\ud83d\ude00"}', {"a": "\U0001f600"}),
        ('{"a": NaN}', {}),
        ('{"a": 1e999}', {}),
        ('{"a": ' + "9" * 300 + "}", {"a": int("9" * 300)}),
    ],
)
async def test_odd_arguments_of_a_call_can_be_written(
    api: Api, arguments: str, value: dict[str, Any]
) -> None:
    """The model is free in a call that is not forced; every API can tell what it wrote."""
    function = {"name": "w", "parameters": {"type": "object"}}
    tool = {"type": "function", "function": function}
    template = api.text.chat_template
    assert template is not None
    call = f'<tool_call>{{"name": "w", "arguments": {arguments}}}</tool_call>'
    api.script_rendered(template.render(HI, [tool]), byte_ids(call))
    room = {CHAT: {"max_tokens": 500}, MESSAGES: {"max_tokens": 500}}
    given: dict[str, list[Any]] = {
        CHAT: [tool],
        RESPONSES: [{"type": "function", **function}],
        MESSAGES: [{"name": "w", "input_schema": {"type": "object"}}],
    }
    for path, tools in given.items():
        more = room.get(path, {"max_output_tokens": 500})
        for stream in (True, False):
            answer = await send(api, path, {**more, "tools": tools, "stream": stream})
            assert answer.status_code == 200, answer.text
            assert "error" not in answer.text.replace('"error":null', "")
        if path == CHAT:
            [made] = answer.json()["choices"][0]["message"]["tool_calls"]
            assert made["function"]["arguments"] == arguments
        elif path == RESPONSES:
            assert answer.json()["output"][0]["arguments"] == arguments
        else:
            assert answer.json()["content"][0]["input"] == value
    await api.alive()
