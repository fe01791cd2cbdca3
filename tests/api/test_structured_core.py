"""Structured output of the default model: valid JSON, whatever else runs."""

import asyncio
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.process import flare, server_process

pytestmark = pytest.mark.model

CHAT = "/v1/chat/completions"
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}


@pytest.fixture(scope="module")
def url(default_core: Path) -> Iterator[str]:
    limits = ["--kv-cache-memory", "256MiB"]
    command = flare("run", str(default_core), "--port", "0", *limits, "--served-model-name", "it")
    with server_process(command, {}) as server:
        yield server.ready()
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 0, server.stderr


def body(ask: str = "Describe a person as JSON.", **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": ask}]
    return {"model": "it", "messages": messages, "max_tokens": 120, **fields}


async def answers(url: str, bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first choice of each answer; all are asked for at the same time."""
    async with httpx.AsyncClient(base_url=url, timeout=120) as http:
        posted = await asyncio.gather(*(http.post(CHAT, json=one) for one in bodies))
    assert [response.status_code for response in posted] == [200] * len(posted), posted[0].text
    return [response.json()["choices"][0] for response in posted]


def check_person(text: str) -> None:
    value = json.loads(text)
    assert list(value) == ["name", "age", "tags"]
    assert isinstance(value["name"], str)
    assert len(value["name"]) <= 20
    assert isinstance(value["age"], int)
    assert 0 <= value["age"] <= 120
    assert 1 <= len(value["tags"]) <= 3
    assert set(value["tags"]) <= {"a", "b"}


async def test_json_of_a_schema(url: str) -> None:
    asked = [body(response_format=SCHEMA, temperature=t, seed=i) for i, t in enumerate([0, 0.7, 2])]
    for choice in await answers(url, asked):
        assert choice["finish_reason"] == "stop"
        check_person(choice["message"]["content"])


async def test_thirty_json_objects_at_once(url: str) -> None:
    """H35: each is JSON, or cut by its length."""
    asked = [
        body(f"Item {i} as JSON.", response_format={"type": "json_object"}, max_tokens=64, seed=i)
        for i in range(30)
    ]
    found = await answers(url, asked)
    for choice in found:
        if choice["finish_reason"] == "stop":
            assert isinstance(json.loads(choice["message"]["content"]), dict)
        else:
            assert choice["finish_reason"] == "length"
            assert choice["message"]["content"].startswith("{")
    assert any(choice["finish_reason"] == "stop" for choice in found)


async def test_neighbours_and_company_change_nothing(url: str) -> None:
    free = body("Tell me a story.", temperature=0.9, seed=4, max_tokens=40, logprobs=True)
    bound = body(response_format=SCHEMA, temperature=0.9, seed=4)
    [free_alone] = await answers(url, [free])
    [bound_alone] = await answers(url, [bound])
    mates = [body(f"Item {i}", guided_regex="[a-z ]{60}", seed=i) for i in range(6)]
    together = await answers(url, [mates[0], free, *mates[1:3], bound, *mates[3:]])
    assert together[1] == free_alone
    assert together[4] == bound_alone


async def test_the_stream_is_the_answer(url: str) -> None:
    asked = body(response_format=SCHEMA, seed=9)
    [whole] = await answers(url, [asked])
    async with httpx.AsyncClient(base_url=url, timeout=120) as http:
        raw = (await http.post(CHAT, json={**asked, "stream": True})).text
    data = [line.removeprefix("data: ") for line in raw.split("\n\n") if line.startswith("data: {")]
    parts = [json.loads(one)["choices"][0]["delta"].get("content", "") for one in data]
    assert "".join(parts) == whole["message"]["content"]
