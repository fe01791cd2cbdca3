"""What ``/v1/messages`` refuses, in Anthropic's words; keys, failures, clients that leave."""

import asyncio
import json
import logging
from typing import Any

import anthropic
import httpx
import pytest

from app.config import ServerConfig
from app.protocol.messages import COUNT_REFUSED, MESSAGE_REFUSED
from tests.support.api import MODEL, Api, serving_api
from tests.support.application import application

PATH = "/v1/messages"
HI: list[Any] = [{"role": "user", "content": "hi"}]
TOOL = {"name": "f", "input_schema": {"type": "object"}}
USE = {"type": "tool_use", "id": "t1", "name": "f", "input": {}}


def blocks(role: str, *content: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [*HI, {"role": role, "content": list(content)}]}


BAD: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": None}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages"),
    (blocks("user", {"type": "image", "source": {}}), "'image'"),
    (blocks("user", {"type": "document", "source": {}}), "'document'"),
    (blocks("user", {"type": "tool_result", "tool_use_id": "t9"}), "t9"),
    (blocks("user", {"type": "thinking", "thinking": "x"}), "'thinking'"),
    (blocks("assistant", {"type": "redacted_thinking", "data": "x"}), "redacted_thinking"),
    (blocks("assistant", USE), "tool_use"),
    (
        blocks("user", {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image"}]}),
        "'image'",
    ),
    ({"temperature": 1.5}, "temperature"),
    ({"top_k": -1}, "top_k"),
    ({"top_p": 2}, "top_p"),
    ({"stop_sequences": [""]}, "stop_sequences"),
    ({"stop_sequences": ["x"] * 17}, "stop_sequences"),
    ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "bash_20250124"),
    ({"tools": [{"name": "f"}]}, "input_schema"),
    ({"tools": [{**TOOL, "input_schema": {"type": "array"}}]}, "'object'"),
    ({"tools": [TOOL, TOOL]}, "more than one"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"tool_choice": {"type": "tool", "name": "g"}, "tools": [TOOL]}, "tool_choice"),
    ({"tool_choice": "auto"}, "tool_choice"),
    ({"thinking": {"type": "enabled", "budget_tokens": 2048}}, "thinking"),
    ({"thinking": {"type": "enabled"}}, "budget_tokens"),
    ({"thinking": {"type": "adaptive"}}, "thinking"),
    ({"output_config": {"effort": "high"}}, "effort"),
    ({"system": [{"type": "image"}]}, "'image'"),
]


def checked(answer: httpx.Response, status: int, kind: str) -> str:
    """The message of an error in Anthropic's shape."""
    body = answer.json()
    assert answer.status_code == status, body
    assert (body["type"], body["error"]["type"]) == ("error", kind)
    assert body["request_id"] == answer.headers["request-id"]
    assert set(body) == {"type", "error", "request_id"}
    message: str = body["error"]["message"]
    return message


def ask(**more: Any) -> dict[str, Any]:
    return {"model": MODEL, "max_tokens": 8, "messages": HI, **more}


@pytest.mark.parametrize(("fields", "word"), BAD)
async def test_refused(api: Api, fields: dict[str, Any], word: str) -> None:
    answer = await api.http.post(PATH, json=ask(**fields))
    assert word in checked(answer, 400, "invalid_request_error")


async def test_fields_that_are_not_supported_are_refused_by_name(api: Api) -> None:
    count = {"model": MODEL, "messages": HI}
    for path, body, rules in (
        (PATH, ask(), MESSAGE_REFUSED),
        (f"{PATH}/count_tokens", count, COUNT_REFUSED),
    ):
        for name, rule in rules.items():
            answer = await api.http.post(path, json={**body, name: {"odd": 1}})
            assert name in checked(answer, 400, "invalid_request_error")
            for neutral in (None, *rule.neutral):
                answer = await api.http.post(path, json={**body, name: neutral})
                assert answer.status_code == 200, (name, neutral, answer.text)


async def test_errors_have_anthropics_shape_on_these_routes_only(api: Api) -> None:
    absent = await api.http.post(PATH, json=ask(model="absent"))
    assert "absent" in checked(absent, 404, "not_found_error")
    checked(await api.http.post(f"{PATH}/batches", json={}), 404, "not_found_error")
    checked(await api.http.get(PATH), 405, "invalid_request_error")
    broken = await api.http.post(PATH, content=b"{", headers={"content-type": "application/json"})
    checked(broken, 400, "invalid_request_error")
    other = await api.http.post("/v1/chat/completions", json={"model": "absent", "messages": HI})
    assert set(other.json()) == {"error"}
    assert "request-id" not in other.headers


async def test_keys() -> None:
    async with application(ServerConfig(api_keys=("k3y",))) as built:
        post = built.http.post
        for headers in ({}, {"x-api-key": "wrong"}, {"authorization": "Bearer wrong"}):
            answer = await post(PATH, json=ask(), headers=headers)
            assert "k3y" not in checked(answer, 401, "authentication_error")
        for headers in ({"x-api-key": "k3y"}, {"authorization": "Bearer k3y"}):
            answer = await post(PATH, json=ask(model="absent"), headers=headers)
            checked(answer, 404, "not_found_error")
        chat = await post("/v1/chat/completions", json={}, headers={"x-api-key": "k3y"})
        assert chat.status_code == 401
        assert set(chat.json()) == {"error"}


async def test_a_server_that_drains_is_overloaded() -> None:
    async with application() as built:
        built.service.begin_drain()
        answer = await built.http.post(PATH, json=ask())
        checked(answer, 503, "overloaded_error")
        assert answer.headers["retry-after"]


async def test_a_large_body() -> None:
    async with application(ServerConfig(max_body_bytes=1024)) as built:
        answer = await built.http.post(PATH, json=ask(system="x" * 2000))
        checked(answer, 413, "request_too_large")


async def test_a_full_queue() -> None:
    async with serving_api(max_queue=0, max_num_seqs=1) as api:
        api.parts.device.delay = 0.05
        answers = await asyncio.gather(
            *(api.http.post(PATH, json=ask(temperature=0)) for _ in range(5))
        )
        refused = [answer for answer in answers if answer.status_code == 429]
        assert refused
        for answer in refused:
            checked(answer, 429, "rate_limit_error")
        await api.idle()


async def test_failure_before_a_stream(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    async with serving_api() as api:
        api.parts.device.fail = ValueError("secret detail")
        answer = await api.http.post(PATH, json=ask(stream=True))
        assert "secret" not in checked(answer, 500, "api_error")


async def test_failure_within_a_stream(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    async with serving_api() as api:
        api.parts.device.delay = 0.02
        raw = ""
        body = ask(stream=True, max_tokens=200, temperature=0)
        async with api.http.stream("POST", PATH, json=body) as response:
            async for text in response.aiter_text():
                raw += text
                if raw.count("text_delta") >= 2:
                    api.parts.device.fail = ValueError("secret detail")
        name, data = raw.strip().split("\n\n")[-1].split("\n")
        assert name == "event: error"
        assert json.loads(data.removeprefix("data: "))["error"]["type"] == "api_error"
        assert "secret" not in raw and "message_stop" not in raw


async def test_pings_during_silence() -> None:
    async with serving_api(server=ServerConfig(ping_seconds=0.05)) as api:
        api.parts.device.delay = 0.3
        async with anthropic.AsyncAnthropic(base_url=api.url, api_key="k") as client:
            answer = await api.http.post(PATH, json=ask(stream=True, max_tokens=2))
            assert answer.text.count("event: ping\n") >= 4
            async with client.messages.stream(model=MODEL, max_tokens=2, messages=HI) as stream:
                assert (await stream.get_final_message()).stop_reason == "max_tokens"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_its_blocks(api: Api, stream: bool) -> None:
    api.parts.device.delay = 0.02
    asked = asyncio.create_task(
        api.http.post(PATH, json=ask(stream=stream, max_tokens=200, temperature=0))
    )
    await asyncio.sleep(0.3)
    assert api.parts.cache.used
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    await api.idle()
    api.parts.device.delay = 0
    await api.alive()
