"""Tools through responses and messages: calls of the default model, round trips, scripted calls."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.api import MODEL, Api, serving_api
from tests.support.clients import Clients, clients_of
from tests.support.words import TEMPLATE, byte_ids, text_assets

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"enum": [1, 2]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
FUNCTION: dict[str, Any] = {
    "type": "function",
    "name": "weather",
    "description": "The weather of a city",
    "parameters": SCHEMA,
}
TOOL: dict[str, Any] = {
    "name": "weather",
    "description": "The weather of a city",
    "input_schema": SCHEMA,
}
QUESTION = "What will the weather be in Paris?"
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome", "days": 2}}\n</tool_call>'
SPOKEN = f"Well.\n{CALL}\n{CALL}"
KNOWS_TOOLS = "{% if tools %}<tool_call>{{ tools | tojson }}{% endif %}" + TEMPLATE


@pytest.fixture(scope="module")
def clients(default_core: Path) -> Iterator[Clients]:
    with clients_of(default_core) as both:
        yield both


def follows_schema(arguments: Any) -> bool:
    return arguments["city"] in ("Paris", "Rome") and arguments["days"] in (1, 2)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "weather"}])
def test_a_response_calls_and_goes_on(clients: Clients, choice: Any) -> None:
    ask: dict[str, Any] = {
        "model": clients.model,
        "tools": [FUNCTION],
        "temperature": 0,
        "max_output_tokens": 120,
    }
    forced: dict[str, Any] = {**ask, "tool_choice": choice, "parallel_tool_calls": False}
    first = clients.openai.responses.create(input=QUESTION, **forced)
    (item,) = first.output
    assert item.type == "function_call" and item.name == "weather"
    assert follows_schema(json.loads(item.arguments))
    with clients.openai.responses.stream(input=QUESTION, **forced) as events:
        kinds = [event.type for event in events]
        streamed = events.get_final_response()
    assert kinds[2] == "response.output_item.added"
    assert "response.function_call_arguments.delta" in kinds
    assert kinds[-3:] == [
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    again = streamed.output[0]
    assert again.type == "function_call" and again.arguments == item.arguments
    output = {"type": "function_call_output", "call_id": item.call_id, "output": "Sunny."}
    second = clients.openai.responses.create(
        input=[output], previous_response_id=first.id, tool_choice="none", **ask
    )
    assert second.output[-1].type == "message" and second.output_text


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"}])
def test_a_message_uses_a_tool_and_goes_on(clients: Clients, choice: dict[str, Any]) -> None:
    turns: list[Any] = [{"role": "user", "content": QUESTION}]
    ask: dict[str, Any] = {
        "model": clients.model,
        "max_tokens": 120,
        "tools": [TOOL],
        "extra_body": {"temperature": 0},
    }
    forced: dict[str, Any] = {
        **ask,
        "tool_choice": {**choice, "disable_parallel_tool_use": True},
    }
    first = clients.anthropic.messages.create(messages=turns, **forced)
    (block,) = first.content
    assert block.type == "tool_use" and block.name == "weather"
    assert follows_schema(block.input)
    assert first.stop_reason == "tool_use"
    with clients.anthropic.messages.stream(messages=turns, **forced) as stream:
        final = stream.get_final_message()
    (again,) = final.content
    assert again.type == "tool_use" and again.input == block.input
    assert final.stop_reason == "tool_use"
    result = {"type": "tool_result", "tool_use_id": block.id, "content": "Sunny."}
    turns += [first.to_param(), {"role": "user", "content": [result]}]
    second = clients.anthropic.messages.create(messages=turns, tool_choice={"type": "none"}, **ask)
    assert second.content[0].type == "text" and second.content[0].text
    counted = clients.anthropic.messages.count_tokens(
        model=clients.model, messages=turns, tools=[TOOL], tool_choice={"type": "none"}
    )
    usage = second.usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def scripted(api: Api, text: str) -> None:
    """Make the model write ``text`` when it is offered the tool."""
    assert api.text.chat_template is not None
    chat = {"name": "weather", "description": "The weather of a city", "parameters": SCHEMA}
    prompt = api.text.chat_template.render(
        [{"role": "user", "content": "w"}], [{"type": "function", "function": chat}]
    )
    api.script_rendered(prompt, list(byte_ids(text)))


async def test_scripted_calls_of_a_response() -> None:
    """Text, then two calls, streamed and whole; the arguments are what the model wrote."""
    async with serving_api(text=text_assets(template=KNOWS_TOOLS), max_model_len=1024) as api:
        scripted(api, SPOKEN)
        body = {"model": MODEL, "input": "w", "tools": [FUNCTION], "temperature": 0}
        whole = (await api.http.post("/v1/responses", json=body)).json()
        kinds = ["message", "function_call", "function_call"]
        assert [item["type"] for item in whole["output"]] == kinds
        assert whole["output"][0]["content"][0]["text"] == "Well."
        assert json.loads(whole["output"][1]["arguments"]) == {"city": "Rome", "days": 2}
        raw = (await api.http.post("/v1/responses", json={**body, "stream": True})).text
        last = json.loads(raw.split("data: ")[-1])["response"]
        hidden = ("id", "call_id")
        for one, other in zip(whole["output"], last["output"], strict=True):
            plain = [{k: v for k, v in item.items() if k not in hidden} for item in (one, other)]
            assert plain[0] == plain[1]
        alone = {**body, "parallel_tool_calls": False}
        single = (await api.http.post("/v1/responses", json=alone)).json()
        assert [item["type"] for item in single["output"]] == kinds[:2]
        await api.idle()


async def test_scripted_tools_of_a_message() -> None:
    async with serving_api(text=text_assets(template=KNOWS_TOOLS), max_model_len=1024) as api:
        scripted(api, SPOKEN)
        turns = [{"role": "user", "content": "w"}]
        body = {"model": MODEL, "max_tokens": 400, "messages": turns, "tools": [TOOL]}
        body["temperature"] = 0
        whole = (await api.http.post("/v1/messages", json=body)).json()
        assert [block["type"] for block in whole["content"]] == ["text", "tool_use", "tool_use"]
        assert whole["content"][1]["input"] == {"city": "Rome", "days": 2}
        assert whole["stop_reason"] == "tool_use"
        raw = (await api.http.post("/v1/messages", json={**body, "stream": True})).text
        assert raw.count('"type":"tool_use"') == 2
        assert '"stop_reason":"tool_use"' in raw
        cut = (await api.http.post("/v1/messages", json={**body, "max_tokens": 30})).json()
        assert cut["stop_reason"] == "max_tokens"
        none = {**body, "tool_choice": {"type": "none"}}
        answer = (await api.http.post("/v1/messages", json=none)).json()
        assert {block["type"] for block in answer["content"]} <= {"text"}
        await api.idle()
