"""What ``/v1/responses`` refuses, by name; failures and clients that leave in mid-stream."""

import asyncio
import json
import logging
from typing import Any

import pytest

from app.protocol.responses import RESPONSE_REFUSED
from tests.support.api import MODEL, Api, behaviour, serving_api
from tests.support.scripted import scripted_engine
from tests.support.words import chat_ids, text_assets

PATH = "/v1/responses"
LOGPROBS = "message.output_text.logprobs"
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}

BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"input": []}, "input", "at least 1"),
    ({"input": 7}, "input", ""),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input", "input_image"),
    ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input", "'text'"),
    ({"input": [{"role": "tool", "content": "x"}]}, "input", ""),
    ({"input": [{"type": "computer_call", "id": "c"}]}, "input", "computer_call"),
    ({"input": [{"type": "item_reference", "id": "c"}]}, "input", "item_reference"),
    (
        {"input": [{"type": "function_call_output", "call_id": "c9", "output": "1"}]},
        "input",
        "c9",
    ),
    (
        {"input": [{"type": "reasoning", "summary": [], "encrypted_content": "x"}]},
        "input",
        "encrypted_content",
    ),
    ({"temperature": 2.5}, "temperature", ""),
    ({"temperature": "1"}, "temperature", ""),
    ({"top_p": 0}, "top_p", ""),
    ({"max_output_tokens": 0}, "max_output_tokens", ""),
    ({"max_output_tokens": True}, "max_output_tokens", ""),
    ({"max_output_tokens": 500}, "input", "context length"),
    ({"tools": [{"type": "web_search"}]}, "tools", "web_search"),
    ({"tools": [{"type": "function"}]}, "tools", "'name'"),
    ({"tools": [TOOL, TOOL]}, "tools", "more than one"),
    ({"tools": [{**TOOL, "parameters": {"type": "string"}}]}, "tools", "'object'"),
    ({"tool_choice": "sometimes"}, "tool_choice", ""),
    ({"tool_choice": {}}, "tool_choice", ""),
    ({"tool_choice": "required"}, "tool_choice", ""),
    ({"tool_choice": {"type": "function", "name": "g"}, "tools": [TOOL]}, "tool_choice", "among"),
    ({"tool_choice": {"type": "allowed_tools"}, "tools": [TOOL]}, "tool_choice", "allowed_tools"),
    ({"text": {"format": {"type": "xml"}}}, "text", ""),
    ({"text": {"format": {"type": "json_schema"}}}, "text", "'schema'"),
    ({"text": {"verbosity": "high"}}, "text", "verbosity"),
    ({"include": ["reasoning.encrypted_content"]}, "include", "encrypted_content"),
    ({"top_logprobs": 2}, "top_logprobs", LOGPROBS),
    ({"top_logprobs": 21, "include": [LOGPROBS]}, "top_logprobs", ""),
    ({"reasoning": {"effort": "high"}}, "reasoning", "does not think"),
    ({"reasoning": {"effort": "huge"}}, "reasoning", ""),
    ({"reasoning": {"summary": "auto"}}, "reasoning", "summary"),
    ({"stream_options": {}}, "stream_options", "stream is true"),
    ({"metadata": {"a": 1}}, "metadata", ""),
    ({"metadata": {str(i): "x" for i in range(17)}}, "metadata", ""),
    ({"previous_response_id": 7}, "previous_response_id", ""),
]


@pytest.mark.parametrize(("fields", "param", "word"), BAD)
async def test_refused(api: Api, fields: dict[str, Any], param: str, word: str) -> None:
    answer = await api.http.post(PATH, json={"model": MODEL, "input": "hi", **fields})
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (400, "invalid_request_error"), error
    assert error["param"] == param, error
    assert word in error["message"], error


async def test_fields_of_other_apis_are_refused_by_name(api: Api) -> None:
    for name, rule in RESPONSE_REFUSED.items():
        body = {"model": MODEL, "input": "hi", "max_output_tokens": 1}
        answer = await api.http.post(PATH, json={**body, name: {"odd": 1}})
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, name)
        assert error["code"] == "unsupported_parameter"
        for neutral in (None, *rule.neutral):
            answer = await api.http.post(PATH, json={**body, name: neutral})
            assert answer.status_code == 200, (name, neutral, answer.text)


async def test_unknown_model(api: Api) -> None:
    answer = await api.http.post(PATH, json={"model": "absent", "input": "hi"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


async def test_log_probabilities(api: Api) -> None:
    body = {"model": MODEL, "input": "hi", "temperature": 0, "max_output_tokens": 3}
    ask = {**body, "include": [LOGPROBS], "top_logprobs": 2}
    (item,) = (await api.http.post(PATH, json=ask)).json()["output"]
    entries = item["content"][0]["logprobs"]
    assert len(entries) == 3
    assert {len(entry["top_logprobs"]) for entry in entries} == {2}
    plain = (await api.http.post(PATH, json={**body, "include": [LOGPROBS]})).json()
    entries = plain["output"][0]["content"][0]["logprobs"]
    assert [entry["top_logprobs"] for entry in entries] == [[], [], []]


async def test_engine_failure_is_response_failed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    async with serving_api() as api:
        api.parts.device.delay = 0.02
        raw = ""
        body = {"model": MODEL, "input": "hi", "temperature": 0, "stream": True}
        async with api.http.stream("POST", PATH, json=body) as response:
            async for text in response.aiter_text():
                raw += text
                if raw.count("output_text.delta") >= 4:
                    api.parts.device.fail = ValueError("secret detail")
        last = json.loads(raw.split("data: ")[-1])
        assert last["type"] == "response.failed"
        assert last["response"]["error"]["code"] == "server_error"
        assert last["response"]["status"] == "failed"
        assert "secret" not in raw and "response.completed" not in raw


async def test_one_broken_response_fails_alone_and_is_kept(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL)
    conversation = [{"role": "user", "content": "bad"}]
    bad = frozenset({chat_ids(text_assets(), conversation)})
    parts = scripted_engine(behaviour(nan_prompts=bad))
    async with serving_api(parts=parts) as api:
        body = {"model": MODEL, "input": "bad", "max_output_tokens": 4}
        assert (await api.http.post(PATH, json=body)).status_code == 500
        raw = (await api.http.post(PATH, json={**body, "stream": True})).text
        last = json.loads(raw.split("data: ")[-1])
        assert last["type"] == "response.failed"
        assert last["response"]["error"]["code"] == "server_error"
        kept = (await api.http.get(f"{PATH}/{last['response']['id']}")).json()
        assert kept["status"] == "failed"
        await api.alive()


async def test_deep_schemas_are_refused_quickly(api: Api) -> None:
    deep = '{"properties":{"a":' * 5000 + "true" + "}}" * 5000
    form = '"text":{"format":{"type":"json_schema","name":"x","schema":%s}}'
    tools = '"tools":[{"type":"function","name":"f","parameters":%s}],"tool_choice":"required"'
    for field in (form, tools):
        body = '{"model":"%s","input":"hi",%s}' % (MODEL, field % deep)  # noqa: UP031
        answer = await asyncio.wait_for(
            api.http.post(PATH, content=body, headers={"content-type": "application/json"}), 3
        )
        assert answer.status_code == 400
    await api.alive()


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_its_blocks(api: Api, stream: bool) -> None:
    api.parts.device.delay = 0.02
    body = {"model": MODEL, "input": "hi", "temperature": 0, "stream": stream}
    asked = asyncio.create_task(_read(api, body))
    await asyncio.sleep(0.3)
    assert api.parts.cache.used
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    await api.idle()
    api.parts.device.delay = 0
    await api.alive()


async def _read(api: Api, body: dict[str, Any]) -> None:
    async with api.http.stream("POST", PATH, json=body) as response:
        await response.aread()
