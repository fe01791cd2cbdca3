"""The official OpenAI SDK against ``flare run`` with the default model, over HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Literal

import httpx
import openai
import pytest
from pydantic import BaseModel, Field

from tests.support.process import flare, server_process

KEY = "k3y"
QUESTION: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
LONG: list[Any] = [{"role": "user", "content": "Write a very long story about the sea."}]
ON = {"ignore_eos": True}
WEATHER: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


class Paint(BaseModel):
    """How walls are painted: short values, so that a small model ends by itself."""

    colour: Literal["red", "green", "blue"]
    walls: int = Field(ge=1, le=9)


@pytest.fixture(scope="module")
def url(default_core: Path) -> Iterator[str]:
    command = flare("run", str(default_core), "--port", "0", "--max-num-seqs", "4")
    variables = {"FLARE_API_KEYS": KEY, "FLARE_MAX_QUEUE": "2", "FLARE_KV_CACHE_MEMORY": "128MiB"}
    with server_process(command, variables) as server:
        yield server.ready()


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as made:
        yield made


@pytest.fixture
async def async_client(url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def model(url: str) -> str:
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY) as client:
        (only,) = client.models.list().data
        assert client.models.retrieve(only.id).id == only.id
        return only.id


async def until_idle(url: str) -> None:
    """Wait until the server says that nothing runs and no block is held."""
    async with httpx.AsyncClient(headers={"authorization": f"Bearer {KEY}"}) as http:
        for _ in range(100):
            text = (await http.get(f"{url}/metrics")).text
            lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")
            names = ("flare_requests_running", "flare_requests_waiting", "flare_kv_blocks_used")
            if all(float(lines[name]) == 0 for name in names):
                return
            await asyncio.sleep(0.02)
    raise AssertionError("the server is not idle")


def test_stream_and_whole_say_the_same(client: openai.OpenAI, model: str) -> None:
    fields: Any = {"model": model, "messages": QUESTION, "max_tokens": 24, "temperature": 0}
    whole = client.chat.completions.create(**fields)
    with client.chat.completions.stream(**fields, stream_options={"include_usage": True}) as stream:
        pieces = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(pieces) == whole.choices[0].message.content == final.choices[0].message.content
    assert final.usage and whole.usage
    assert final.usage.completion_tokens == whole.usage.completion_tokens
    assert final.choices[0].finish_reason == whole.choices[0].finish_reason


def test_completions_with_logprobs_and_several_prompts(client: openai.OpenAI, model: str) -> None:
    answer = client.completions.create(
        model=model, prompt=["The sun", "The sea"], n=2, max_tokens=4, logprobs=2, temperature=0
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    for choice in answer.choices:
        assert choice.logprobs and choice.logprobs.token_logprobs
        assert all(value <= 0 for value in choice.logprobs.token_logprobs)
    assert answer.choices[0].text == answer.choices[1].text


def test_raw_responses_show_headers(client: openai.OpenAI, model: str) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model=model,
        messages=QUESTION,
        max_tokens=2,
        extra_headers={"x-request-id": "my-id"},
        extra_body={"top_k": 1, "return_token_ids": True},
    )
    assert raw.headers["x-request-id"] == raw.request_id == "my-id"
    assert raw.parse().choices[0].message.content is not None
    assert len(raw.parse().choices[0].model_extra["token_ids"]) == 2  # type: ignore[index]
    with client.chat.completions.with_streaming_response.create(
        model=model, messages=QUESTION, max_tokens=2, stream=True
    ) as streamed:
        assert streamed.headers["cache-control"] == "no-cache"
        assert list(streamed.iter_lines())[-2:] == ["data: [DONE]", ""]


def test_parse_gives_an_object(client: openai.OpenAI, model: str) -> None:
    answer = client.chat.completions.parse(
        model=model,
        messages=[{"role": "user", "content": "Choose a colour and a number of walls."}],
        response_format=Paint,
        max_tokens=64,
        temperature=0,
    )
    assert isinstance(answer.choices[0].message.parsed, Paint)


def test_a_cut_answer_is_said_by_parse(client: openai.OpenAI, model: str) -> None:
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(
            model=model, messages=QUESTION, response_format=Paint, max_tokens=3
        )


def test_a_tool_round_trip(client: openai.OpenAI, model: str) -> None:
    ask: Any = {"model": model, "tools": [TOOL], "temperature": 0, "max_tokens": 48}
    first = client.chat.completions.create(
        messages=WEATHER, tool_choice="required", parallel_tool_calls=False, **ask
    )
    assert first.choices[0].finish_reason == "tool_calls"
    assert first.choices[0].message.tool_calls
    (call,) = first.choices[0].message.tool_calls
    assert call.type == "function" and call.function.name == "get_weather"
    city = json.loads(call.function.arguments)["city"]
    assert city in ("Paris", "Rome")
    reply: Any = {"role": "tool", "tool_call_id": call.id, "content": f"Sunny in {city}."}
    history: Any = [*WEATHER, first.choices[0].message, reply]
    last = client.chat.completions.create(messages=history, tool_choice="none", **ask)
    assert last.choices[0].message.content and not last.choices[0].message.tool_calls


async def test_streamed_tool_calls_equal_whole_ones(
    async_client: openai.AsyncOpenAI, model: str
) -> None:
    named: Any = {"type": "function", "function": {"name": "get_weather"}}
    fields: Any = {"model": model, "messages": WEATHER, "tools": [TOOL], "tool_choice": named}
    fields.update(temperature=0, max_tokens=48)
    whole = await async_client.chat.completions.create(**fields)
    async with async_client.chat.completions.stream(**fields) as stream:
        final = await stream.get_final_completion()
    for answer in (whole, final):
        (call,) = answer.choices[0].message.tool_calls or ()
        assert call.type == "function" and json.loads(call.function.arguments)["city"]
    first, second = whole.choices[0].message.tool_calls, final.choices[0].message.tool_calls
    assert first and second and first[0].type == second[0].type == "function"
    assert first[0].function.arguments == second[0].function.arguments


async def test_many_at_once_say_the_same(url: str, model: str) -> None:
    """More than fit: the SDK's own retries wait for the queue."""
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=20) as client:

        async def one() -> str | None:
            answer = await client.chat.completions.create(
                model=model, messages=QUESTION, max_tokens=12, temperature=0
            )
            return answer.choices[0].message.content

        assert len(set(await asyncio.gather(*(one() for _ in range(16))))) == 1


async def test_a_full_queue_is_a_rate_limit_error(
    url: str, async_client: openai.AsyncOpenAI, model: str
) -> None:
    ask: Any = {"model": model, "messages": LONG, "max_tokens": 100, "stream": True}
    results = await asyncio.gather(
        *(async_client.chat.completions.create(**ask) for _ in range(12)), return_exceptions=True
    )
    errors = [result for result in results if isinstance(result, BaseException)]
    streams = [result for result in results if not isinstance(result, BaseException)]
    assert errors and all(isinstance(error, openai.RateLimitError) for error in errors)
    assert all(e.response.headers["retry-after"] for e in errors if hasattr(e, "response"))
    assert len(streams) >= 4
    for stream in streams:
        await stream.close()
    await until_idle(url)


async def test_closing_a_stream_frees_everything(
    url: str, async_client: openai.AsyncOpenAI, model: str
) -> None:
    stream = await async_client.chat.completions.create(
        model=model, messages=LONG, max_tokens=2000, stream=True
    )
    async for chunk in stream:
        if chunk.choices[0].delta.content:
            break
    await stream.close()
    await until_idle(url)


async def test_cancelling_the_task_and_timing_out_free_everything(
    url: str, async_client: openai.AsyncOpenAI, model: str
) -> None:
    ask: Any = {"model": model, "messages": LONG, "max_tokens": 2000, "extra_body": ON}
    task = asyncio.create_task(async_client.chat.completions.create(**ask))
    await asyncio.sleep(0.3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until_idle(url)
    with pytest.raises(openai.APITimeoutError):
        await async_client.with_options(timeout=0.5).chat.completions.create(**ask)
    await until_idle(url)


def test_errors_have_their_classes(url: str, client: openai.OpenAI, model: str) -> None:
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(model=model, messages=QUESTION, temperature=3)
    assert (wrong.value.param, wrong.value.type) == ("temperature", "invalid_request_error")
    with pytest.raises(openai.NotFoundError) as absent:
        client.chat.completions.create(model="absent", messages=QUESTION)
    assert absent.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model=model, prompt="word " * 9000, max_tokens=5)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.InternalServerError) as never:
        client.embeddings.create(model=model, input="text")
    assert never.value.status_code == 501
    other = openai.OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0)
    with other, pytest.raises(openai.AuthenticationError):
        other.models.list()


def test_responses(client: openai.OpenAI, model: str) -> None:
    first = client.responses.create(model=model, input="Say hello.", max_output_tokens=16)
    assert (
        first.output_text and client.responses.retrieve(first.id).output_text == first.output_text
    )
    parsed = client.responses.parse(
        model=model,
        input="Choose a colour and a number of walls.",
        previous_response_id=first.id,
        text_format=Paint,
        max_output_tokens=64,
        temperature=0,
    )
    assert isinstance(parsed.output_parsed, Paint)
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
