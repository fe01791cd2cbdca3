"""Reasoning over HTTP on a scripted model: split by how the prompt was rendered."""

import json
from typing import Any

import pytest

from app.config import ServerConfig
from tests.support.api import behaviour, serving_api
from tests.support.bundled import Bundled
from tests.support.dialogue import HI, THINK_TEMPLATE, TOOL, both, dialogue_api, say
from tests.support.scripted import scripted_engine
from tests.support.words import text_assets

ON: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": True}}
OFF: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": False}}
JSON = {"type": "json_object", "schema": {"enum": [{"a": 1}]}}


@pytest.mark.parametrize("size", [1, 4, 100])
async def test_reasoning_is_apart_from_the_answer(size: int) -> None:
    parts = scripted_engine(behaviour(), max_model_len=1024, num_blocks=257)
    async with dialogue_api(THINK_TEMPLATE, parts=parts, engine=Bundled(parts.engine, size)) as api:
        say(api, "<think>\nhm, 1 < 2\n</think>\n\nYes.")
        choice, _ = await both(api)
        assert choice["message"]["reasoning_content"] == "hm, 1 < 2"
        assert choice["message"]["content"] == "Yes."
        usage = (await api.chat(messages=HI)).json()["usage"]
        thought = len("\nhm, 1 < 2\n</think>")
        assert usage["completion_tokens_details"] == {"reasoning_tokens": thought}


async def test_a_prompt_that_begins_reasoning() -> None:
    async with dialogue_api(THINK_TEMPLATE) as api:
        say(api, "hm\n</think>\nYes.", **ON)
        choice, _ = await both(api, **ON)
        assert choice["message"]["reasoning_content"] == "hm"
        assert choice["message"]["content"] == "Yes."
        cut, _ = await both(api, **ON, max_tokens=2)
        assert cut["message"]["reasoning_content"] == "hm"
        assert (cut["message"]["content"], cut["finish_reason"]) == ("", "length")


async def test_thinking_off_leaves_the_text_alone() -> None:
    async with dialogue_api(THINK_TEMPLATE) as api:
        say(api, "<think>quoted</think> Yes.", **OFF)
        choice, _ = await both(api, **OFF)
        assert choice["message"]["content"] == "<think>quoted</think> Yes."
        assert "reasoning_content" not in choice["message"]


async def test_thinking_off_and_json() -> None:
    """H41: the JSON is the content."""
    async with dialogue_api(THINK_TEMPLATE) as api:
        for fields in (OFF, {}):
            choice, _ = await both(api, **fields, response_format=JSON, max_tokens=60)
            assert json.loads(choice["message"]["content"]) == {"a": 1}
            assert "reasoning_content" not in choice["message"]


async def test_thinking_on_and_json() -> None:
    """The grammar begins behind the reasoning that the prompt began."""
    async with dialogue_api(THINK_TEMPLATE) as api:
        say(api, "free {thought}\n</think>\n" + "x" * 40, **ON)
        choice, _ = await both(api, **ON, response_format=JSON, max_tokens=80)
        assert choice["message"]["reasoning_content"] == "free {thought}"
        assert json.loads(choice["message"]["content"]) == {"a": 1}


async def test_reasoning_before_calls() -> None:
    call = '<tool_call>{"name": "w", "arguments": {"city": "B", "n": 1}}</tool_call>'
    async with dialogue_api(THINK_TEMPLATE) as api:
        say(api, f"<think>{call}</think>\n{call}", tools=[TOOL])
        choice, _ = await both(api, tools=[TOOL])
        assert choice["message"]["reasoning_content"] == call
        assert len(choice["message"]["tool_calls"]) == 1
        say(api, "hm</think>\n", tools=[TOOL], **ON)
        forced, _ = await both(
            api,
            tools=[TOOL],
            tool_choice="required",
            parallel_tool_calls=False,
            max_tokens=200,
            **ON,
        )
        assert forced["message"]["reasoning_content"] == "hm"
        assert forced["message"]["tool_calls"][0]["function"]["name"] == "w"
        assert forced["message"]["content"] is None


async def test_a_begun_message_goes_on_where_it_stood() -> None:
    async with dialogue_api(THINK_TEMPLATE) as api:
        for begun, thinks in (("<think>so far", True), ("<think>a</think> It", False)):
            messages = [*HI, {"role": "assistant", "content": begun}]
            choice, _ = await both(
                api, messages=messages, continue_final_message=True, max_tokens=4
            )
            assert ("reasoning_content" in choice["message"]) is thinks


async def test_parsers_can_be_turned_off() -> None:
    text = text_assets(template=THINK_TEMPLATE)
    server = ServerConfig(tool_parser="none", reasoning_parser="none")
    said = '<think>a</think>\n<tool_call>{"name": "w"}</tool_call>'
    options = {"max_model_len": 1024, "num_blocks": 257}
    async with serving_api(text=text, server=server, **options) as api:
        say(api, said, tools=[TOOL])
        choice, _ = await both(api, tools=[TOOL])
        assert choice["message"]["content"] == said
        assert choice["finish_reason"] == "stop"
        forced, _ = await both(
            api, tools=[TOOL], tool_choice="required", parallel_tool_calls=False, max_tokens=200
        )
        assert forced["message"]["tool_calls"][0]["function"]["name"] == "w"


async def test_parsers_can_be_named() -> None:
    text = text_assets(template=THINK_TEMPLATE)
    server = ServerConfig(tool_parser="pythonic", reasoning_parser="mistral")
    options = {"max_model_len": 1024, "num_blocks": 257}
    async with serving_api(text=text, server=server, **options) as api:
        say(api, "[THINK]a[/THINK][w(city='B', n=1)]", tools=[TOOL])
        choice, _ = await both(api, tools=[TOOL])
        assert choice["message"]["reasoning_content"] == "a"
        [call] = choice["message"]["tool_calls"]
        assert json.loads(call["function"]["arguments"]) == {"city": "B", "n": 1}
