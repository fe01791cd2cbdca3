"""Server-sent events: order, usage, keep-alives, errors, disconnects, OpenAI's own client."""

import asyncio
import json
import logging
import threading
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest

from app.config import ServerConfig
from engine.text.tokenizer import Tokenizer
from tests.support.api import MODEL, Api, behaviour, serving_api, stream_events
from tests.support.bundled import Bundled
from tests.support.scripted import scripted_engine
from tests.support.words import byte_ids, piece_ids

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HI: list[Any] = [{"role": "user", "content": "hi"}]


def endless(path: str) -> dict[str, Any]:
    """A request that ends by itself only at the context's end: greedy, so no end token is drawn."""
    prompt = {"messages": HI} if path == CHAT else {"prompt": "x", "max_tokens": 255}
    return {"model": MODEL, "temperature": 0, **prompt}


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({}, False),
        ({"stream_options": {}}, False),
        ({"stream_options": {"include_usage": False}}, False),
        ({"stream_options": None}, False),
        ({"stream_options": {"include_usage": True}}, True),
    ],
)
@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_usage_only_when_asked(
    api: Api, path: str, options: dict[str, Any], shown: bool
) -> None:
    """H4: one chunk more, and only then."""
    prompt = {"messages": HI} if path == CHAT else {"prompt": "x"}
    fields = {**prompt, "n": 2, "max_tokens": 3}
    events = await stream_events(api.http, path, {**fields, **options})
    assert events.done
    if not shown:
        assert all("usage" not in chunk for chunk in events.chunks)
        return
    *others, last = events.chunks
    assert all(chunk["usage"] is None for chunk in others)
    assert last["choices"] == []
    assert [events.of(index)[-1]["finish_reason"] for index in (0, 1)] == ["length"] * 2
    whole = await api.http.post(path, json={"model": MODEL, "temperature": 0, **fields})
    expected = whole.json()["usage"]
    assert {k: last["usage"][k] for k in expected if k.endswith("_tokens")} == {
        k: v for k, v in expected.items() if k.endswith("_tokens")
    }


async def test_several_tokens_per_delta() -> None:
    """H5: each token has its own alternatives."""
    parts = scripted_engine(behaviour())
    fields = {"messages": HI, "logprobs": True, "top_logprobs": 3, "return_token_ids": True}
    answers = []
    for size in (1, 3, 4):
        parts = scripted_engine(behaviour())
        async with serving_api(parts=parts, engine=Bundled(parts.engine, size)) as api:
            api.script(HI, piece_ids("one", " two", " three", "ABC", "END", "DEF", "HI"))
            for stop in (None, "CEN"):
                whole = (await api.chat(**fields, stop=stop)).json()["choices"][0]
                events = await stream_events(api.http, CHAT, {**fields, "stop": stop})
                chunks = events.of()
                content = [e for c in chunks for e in (c["logprobs"] or {}).get("content", [])]
                assert content == whole["logprobs"]["content"]
                assert [i for c in chunks for i in c.get("token_ids", [])] == whole["token_ids"]
                answers.append((stop, whole))
            await api.idle()
    tops = [str(e["top_logprobs"]) for e in answers[0][1]["logprobs"]["content"]]
    assert len(set(tops)) == len(tops) == 7
    assert all(answer == answers[i % 2] for i, answer in enumerate(answers))


async def test_concurrent_streams_keep_their_characters_apart(api: Api) -> None:
    """H3: decoder state is per request."""
    texts = {"a": "\U0001f600" * 5, "b": "\u4e2d\u6587" * 5, "c": "\u00e9\U0001f9ea" * 5}
    for prompt, text in texts.items():
        api.script(prompt, piece_ids(text.encode()))
    asked = [
        stream_events(api.http, TEXT, {"prompt": p, "max_tokens": 60, "stop": ["\ufffd"]})
        for p in texts
    ]
    for text, events in zip(texts.values(), await asyncio.gather(*asked), strict=True):
        pieces = [c["text"] for c in events.of() if c["text"]]
        assert pieces == list(text)


async def test_keep_alive_comments_during_silence() -> None:
    """H9: comments, never data."""
    server = ServerConfig(ping_seconds=0.05)
    async with serving_api(server=server) as api:
        api.parts.device.delay = 0.3
        fields = {"messages": HI, "max_tokens": 2}
        events = await stream_events(api.http, CHAT, fields)
        assert events.comments >= 4 and events.done
        assert [c["finish_reason"] for c in events.of()][-1] == "length"
        whole = await api.chat(**fields)
        assert whole.text.startswith("{")
        client = openai.AsyncOpenAI(base_url=f"{api.url}/v1", api_key="none", max_retries=0)
        stream = await client.chat.completions.create(
            model=MODEL, messages=HI, max_tokens=2, temperature=0, stream=True
        )
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        assert text == whole.json()["choices"][0]["message"]["content"]
        await client.close()


async def test_keep_alive_comes_before_the_first_token() -> None:
    async with serving_api(server=ServerConfig(ping_seconds=0.05)) as api:
        api.parts.device.delay = 0.3
        body = {"model": MODEL, "messages": HI, "max_tokens": 1, "stream": True}
        async with api.http.stream("POST", CHAT, json=body) as response:
            texts = [text async for text in response.aiter_text()]
        assert texts[0].startswith(":")
        assert texts[-1].endswith("[DONE]\n\n")


async def test_pings_can_be_off() -> None:
    async with serving_api(server=ServerConfig(ping_seconds=0)) as api:
        api.parts.device.delay = 0.1
        events = await stream_events(api.http, CHAT, {"messages": HI, "max_tokens": 1})
        assert events.comments == 0 and events.done


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_errors_before_the_stream_are_plain_answers(api: Api, path: str) -> None:
    """H10: the true status and JSON."""
    prompt = {"messages": HI} if path == CHAT else {"prompt": "x"}
    events = await stream_events(api.http, path, {**prompt, "max_tokens": 500})
    assert (events.status, events.content_type) == (400, "application/json")
    assert events.chunks[0]["error"]["code"] == "context_length_exceeded"
    events = await stream_events(api.http, path, {**prompt, "model": "absent"})
    assert (events.status, events.content_type) == (404, "application/json")


async def test_full_queue_is_a_plain_429() -> None:
    async with serving_api(max_queue=1, max_num_seqs=1) as api:
        answer = await api.complete(prompt=["a", "b", "c"], max_tokens=4)
        assert answer.status_code == 429
        assert answer.headers["retry-after"]
        assert (await api.complete(prompt=["a", "b"], max_tokens=4)).status_code == 200


async def test_engine_failure_before_the_first_token(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    async with serving_api() as api:
        api.parts.device.fail = ValueError("secret detail")
        events = await stream_events(api.http, CHAT, {"messages": HI})
        assert (events.status, events.content_type) == (500, "application/json")
        assert events.chunks[0]["error"]["type"] == "server_error"
        assert "secret" not in str(events.chunks)


async def test_engine_failure_after_a_keep_alive(caplog: pytest.LogCaptureFixture) -> None:
    """The status line is out: the error is an event although there was no token."""
    caplog.set_level(logging.CRITICAL)
    async with serving_api(server=ServerConfig(ping_seconds=0.05)) as api:
        api.parts.device.delay = 0.3
        api.parts.device.fail = ValueError("secret detail")
        events = await stream_events(api.http, CHAT, {"messages": HI})
        assert (events.status, events.done) == (200, False)
        assert events.comments >= 1
        assert [list(chunk) for chunk in events.chunks] == [["error"]]
        assert "secret" not in str(events.chunks)


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_engine_failure_in_mid_stream(
    caplog: pytest.LogCaptureFixture, path: str, n: int
) -> None:
    """H10: an error event, and no normal end."""
    caplog.set_level(logging.CRITICAL)
    async with serving_api() as api:
        api.parts.device.delay = 0.02
        body = {**endless(path), "stream": True, "n": n}
        raw = ""
        async with api.http.stream("POST", path, json=body) as response:
            async for text in response.aiter_text():
                raw += text
                if raw.count('"index"') >= 4:
                    api.parts.device.fail = ValueError("secret detail")
        blocks = raw.strip().split("\n\n")
        error = json.loads(blocks[-1].removeprefix("data: "))["error"]
        assert error["type"] == "server_error" and "secret" not in raw
        assert "[DONE]" not in raw
        assert '"finish_reason":"' not in raw


async def test_one_broken_sequence_fails_alone(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    parts = scripted_engine(behaviour(nan_prompts=frozenset({byte_ids("bad")})))
    async with serving_api(parts=parts) as api:
        good, bad = await asyncio.gather(
            api.complete(prompt="good", max_tokens=9), api.complete(prompt="bad", max_tokens=9)
        )
        assert (good.status_code, bad.status_code) == (200, 500)
        await api.alive()


async def test_drained_stream_ends_with_an_error(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    async with serving_api() as api:
        api.parts.device.delay = 0.02
        body = {**endless(CHAT), "stream": True}
        raw = ""
        async with api.http.stream("POST", CHAT, json=body) as response:
            async for text in response.aiter_text():
                if not raw:
                    draining = asyncio.create_task(api.parts.engine.drain(0.05))
                raw += text
        await draining
        error = json.loads(raw.strip().split("\n\n")[-1].removeprefix("data: "))["error"]
        assert error["code"] == "engine_unavailable"
        assert "[DONE]" not in raw
        assert '"finish_reason":"' not in raw


async def test_drained_answer_is_a_503(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    async with serving_api() as api:
        api.parts.device.delay = 0.02
        asked = asyncio.create_task(api.http.post(TEXT, json=endless(TEXT)))
        await _until(lambda: api.parts.cache.used > 0)
        await api.parts.engine.drain(0.05)
        answer = await asked
        assert answer.status_code == 503
        assert answer.headers["retry-after"]
        assert answer.json()["error"]["code"] == "engine_unavailable"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_disconnect_aborts(api: Api, path: str, stream: bool) -> None:
    api.parts.device.delay = 0.02
    body = {**endless(path), "stream": stream, "n": 2}
    await _leave_after(api, path, body, lambda: api.parts.cache.used > 0)
    await api.idle(1.0)
    api.parts.device.delay = 0
    await api.alive()


async def test_disconnect_during_prefill_aborts(api: Api) -> None:
    api.parts.device.delay = 0.3
    for stream in (False, True):
        body = {**endless(TEXT), "prompt": "x" * 200, "max_tokens": 50, "stream": stream}
        replays = len(api.parts.device.replays)
        await _leave_after(api, TEXT, body, lambda: api.parts.cache.used > 0)
        await api.idle(1.0)
        assert len(api.parts.device.replays) - replays <= 3


async def test_disconnect_while_waiting_aborts() -> None:
    async with serving_api(max_num_seqs=1) as api:
        api.parts.device.delay = 0.02
        running = asyncio.create_task(api.complete(prompt="a", max_tokens=40, ignore_eos=True))
        await asyncio.sleep(0.1)
        body = {"model": MODEL, "prompt": "b", "stream": True}
        await _leave_after(api, TEXT, body, lambda: True)
        answer = await running
        assert answer.json()["usage"]["completion_tokens"] == 40
        await api.idle()


async def _until(ready: Callable[[], bool]) -> None:
    for _ in range(400):
        if ready():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it did not come to pass")


async def _leave_after(
    api: Api, path: str, body: dict[str, Any], ready: Callable[[], bool]
) -> None:
    """Send a request on a connection of its own and close that once ``ready``."""
    async with httpx.AsyncClient(base_url=api.url, verify=False) as client:
        asked = asyncio.create_task(client.post(path, json=body))
        await _until(ready)
        await asyncio.sleep(0.05)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)


async def test_events_are_ascii_and_unbuffered(api: Api) -> None:
    api.script(HI, piece_ids("a\u2028b\u0085c".encode()))
    body = {"model": MODEL, "messages": HI, "stream": True, "temperature": 0}
    async with api.http.stream("POST", CHAT, json=body) as response:
        raw = await response.aread()
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.headers["cache-control"] == "no-cache"
    assert raw.isascii()
    texts = [
        json.loads(line[6:]) for line in raw.decode().split("\n") if line.startswith("data: {")
    ]
    content = "".join(c["choices"][0]["delta"].get("content", "") for c in texts)
    assert content == "a\u2028b\u0085c"


async def test_openai_async_client(api: Api) -> None:
    api.script(HI, piece_ids("one", " two", " three"))
    api.script("x", piece_ids("ABC", "DEF"))
    async with openai.AsyncOpenAI(base_url=f"{api.url}/v1", api_key="none") as client:
        answer = await client.chat.completions.create(
            model=MODEL, messages=HI, temperature=0, logprobs=True, top_logprobs=2
        )
        assert answer.choices[0].message.content == "one two three"
        assert answer.choices[0].logprobs and answer.choices[0].logprobs.content
        assert len(answer.choices[0].logprobs.content) == 3
        assert answer.usage and answer.usage.completion_tokens == 4
        chunks = [
            chunk
            async for chunk in await client.chat.completions.create(
                model=MODEL,
                messages=HI,
                temperature=0,
                stream=True,
                stream_options={"include_usage": True},
            )
        ]
        usage = chunks[-1].usage
        assert usage and usage.total_tokens == answer.usage.total_tokens
        text = await client.completions.create(
            model=MODEL, prompt="x", temperature=0, echo=True, logprobs=1
        )
        assert text.choices[0].text == "xABCDEF"
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(model=MODEL, messages=HI, n=0)
        assert caught.value.param == "n"
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="absent", messages=HI)


async def test_openai_blocking_client(api: Api) -> None:
    api.script(HI, piece_ids("one", " two", " three"))

    def talk() -> tuple[str | None, str]:
        with openai.OpenAI(base_url=f"{api.url}/v1", api_key="none") as client:
            whole = client.chat.completions.create(model=MODEL, messages=HI, temperature=0)
            stream = client.chat.completions.create(
                model=MODEL, messages=HI, temperature=0, stream=True
            )
            text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
            return whole.choices[0].message.content, text

    assert await asyncio.to_thread(talk) == ("one two three", "one two three")


async def test_openai_client_sees_an_error_in_mid_stream(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL)
    async with serving_api() as api:
        api.parts.device.delay = 0.02
        client = openai.AsyncOpenAI(base_url=f"{api.url}/v1", api_key="none", max_retries=0)
        stream = await client.chat.completions.create(
            model=MODEL, messages=HI, temperature=0, stream=True
        )
        with pytest.raises(openai.APIError):
            async for chunk in stream:
                if chunk.choices[0].delta.content:
                    api.parts.device.fail = ValueError("broken")
        await client.close()


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_health_is_answered_beside_a_long_prompt(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H21: long prompts are handled off the event loop."""
    text = "some words " * 20_000
    prompt = {"messages": [{"role": "user", "content": text}]} if path == CHAT else {"prompt": text}
    tokenizing, go_on = threading.Event(), threading.Event()
    encode = Tokenizer.encode

    def wait(self: Tokenizer, *args: Any, **kwargs: Any) -> Any:
        tokenizing.set()
        assert go_on.wait(30), "nothing was answered while the prompt was tokenized"
        return encode(self, *args, **kwargs)

    async with serving_api(server=ServerConfig(max_body_bytes=1 << 23)) as api:
        monkeypatch.setattr(Tokenizer, "encode", wait)
        asked = asyncio.create_task(api.http.post(path, json={"model": MODEL, **prompt}))
        assert await asyncio.to_thread(tokenizing.wait, 30)
        assert (await api.http.get("/health")).status_code == 200
        go_on.set()
        assert (await asked).json()["error"]["code"] == "context_length_exceeded"
