"""Bad requests: a 400 that names the field, and a server that goes on."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from app.protocol.chat import CHAT_REFUSED
from app.protocol.completions import COMPLETION_REFUSED, MAX_PROMPT_IDS
from tests.support.api import MODEL, Api, serving_api
from tests.support.words import VOCAB_SIZE, byte_ids

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api() -> AsyncIterator[Api]:
    """One server for all bad requests: each must leave it whole for the next."""
    async with serving_api() as running:
        yield running
        await running.idle()


def base(path: str) -> dict[str, Any]:
    return {"model": MODEL, **({"messages": HI} if path == CHAT else {"prompt": "x"})}


async def refused(api: Api, path: str, fields: dict[str, Any]) -> dict[str, Any]:
    """POST the fields; assert a 400 in OpenAI's shape that betrays nothing; return the error."""
    answer = await api.http.post(path, json={**base(path), **fields})
    assert answer.status_code == 400, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert set(error) == {"message", "type", "param", "code"}
    for leak in ("Traceback", "pydantic", "Error(", "app."):
        assert leak not in answer.text
    return error


BOTH = [
    ("n", [0, -1, True, 1.5, 129, 1000000, "2"]),
    ("seed", [2**64, 2**63, -(2**63) - 1, 1.5, "1", True]),
    ("temperature", [-0.1, 2.1, "0.5", "NaN", True, [1]]),
    ("top_p", [0, -1, 1.01, "1"]),
    ("presence_penalty", [2.1, -2.1]),
    ("frequency_penalty", [2.1, -2.1]),
    ("top_k", [-2, 1.5]),
    ("min_p", [-0.1, 1.1]),
    ("repetition_penalty", [0, -1, 11, 1e-300]),
    ("max_tokens", [-1, 1.5, "5", True]),
    ("min_tokens", [-1, 10**9]),
    ("stop", ["", ["", ".."], [1], 5, {}, ["a"] * 17, "x" * 1025]),
    ("stop_token_ids", [[VOCAB_SIZE], [-1], ["a"], [True], [1] * 65, 5]),
    ("logit_bias", [{str(VOCAB_SIZE): 5}, {"-1": 5}, {"abc": 5}, {"5": 101}, {"5": None}]),
    ("logit_bias", [{"5": True}, {"99999999": 5}, {"9" * 30: 1}, {"\u0665": 1}, [1], {"5": "1"}]),
    ("stream", [1, "true"]),
    ("stream_options", [{"include_usage": True}, {}, 5]),
    ("cache_salt", ["", "x" * 257, 5]),
    ("priority", [1.5, 2**31]),
    ("model", [None, 5]),
    ("user", [5]),
    ("ignore_eos", ["yes"]),
    ("service_tier", ["flex", "priority", 1]),
    ("store", [True, "false"]),
    ("prompt_logprobs", [-1, 21, True, "1"]),
]


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(("field", "values"), BOTH, ids=[name for name, _ in BOTH])
async def test_bad_values(api: Api, path: str, field: str, values: list[Any]) -> None:
    """H13, H14, H16, H17, H62: each is refused by its name, and the server goes on."""
    for value in values:
        assert (await refused(api, path, {field: value}))["param"] == field, value
    await api.alive()


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"messages": []}, "messages"),
        (CHAT, {"messages": None}, "messages"),
        (CHAT, {"messages": "hi"}, "messages"),
        (CHAT, {"messages": [{"role": "robot", "content": "x"}]}, "messages"),
        (CHAT, {"messages": [{"role": "user"}]}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": None}]}, "messages"),
        (CHAT, {"messages": [{"role": "assistant", "content": None}]}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": "x", "audio": {}}]}, "messages"),
        (CHAT, {"max_tokens": 0}, "max_tokens"),
        (CHAT, {"max_tokens": 1, "max_completion_tokens": 2}, "max_completion_tokens"),
        (CHAT, {"logprobs": 1}, "logprobs"),
        (CHAT, {"top_logprobs": 2}, "top_logprobs"),
        (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        (TEXT, {"logprobs": 21}, "logprobs"),
        (TEXT, {"logprobs": True}, "logprobs"),
        (TEXT, {"prompt": ""}, "prompt"),
        (TEXT, {"prompt": [""]}, "prompt"),
        (TEXT, {"prompt": []}, "prompt"),
        (TEXT, {"prompt": [[]]}, "prompt"),
        (TEXT, {"prompt": ["a", ""]}, "prompt"),
        (TEXT, {"prompt": [[1], []]}, "prompt"),
        (TEXT, {"prompt": None}, "prompt"),
        (TEXT, {"prompt": [1, "a"]}, "prompt"),
        (TEXT, {"prompt": [True]}, "prompt"),
        (TEXT, {"prompt": [VOCAB_SIZE]}, "prompt"),
        (TEXT, {"prompt": [-1]}, "prompt"),
        (TEXT, {"prompt": ["a"] * 1025}, "prompt"),
        (TEXT, {"prompt": ["a"] * 9, "n": 128}, "n"),
        (TEXT, {"n": 3, "best_of": 2}, "best_of"),
        (TEXT, {"best_of": 5, "stream": True}, "best_of"),
        (TEXT, {"best_of": 0}, "best_of"),
    ],
)
async def test_bad_endpoint_values(api: Api, path: str, fields: dict[str, Any], param: str) -> None:
    assert (await refused(api, path, fields))["param"] == param
    await api.alive()


@pytest.mark.parametrize(
    ("path", "table"), [(CHAT, CHAT_REFUSED), (TEXT, COMPLETION_REFUSED)], ids=["chat", "text"]
)
async def test_unsupported_fields_are_refused_by_name(
    api: Api, path: str, table: dict[str, Any]
) -> None:
    for name, rule in table.items():
        error = await refused(api, path, {name: {"some": "value"}})
        assert error["param"] == name and name in error["message"]
        for neutral in (None, *rule.neutral):
            body = {**base(path), "max_tokens": 1, name: neutral}
            answer = await api.http.post(path, json=body)
            assert answer.status_code == 200, (name, neutral, answer.text)


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [TOOL], "tool_choice": "sometimes"},
        {"tools": [TOOL], "tool_choice": {}},
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "absent"}}},
        {"tool_choice": {"type": "function", "function": {"name": "f"}}},
        {"tool_choice": "required"},
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": ["f"]}}},
    ],
)
async def test_bad_tool_choice(api: Api, fields: dict[str, Any]) -> None:
    """H23: each is refused by its name."""
    assert (await refused(api, CHAT, fields))["param"] == "tool_choice"


def tool(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **fields}}


@pytest.mark.parametrize(
    "tools",
    [
        5,
        ["f"],
        [{"type": "web_search"}],
        [{"type": "custom", "custom": {"name": "f"}}],
        [{"function": {"name": "f"}}],
        [{"type": "function", "function": "f"}],
        [{"type": "function", "name": "f", "parameters": {}}],
        [tool(name="")],
        [tool(name="a b")],
        [tool(name="f" * 65)],
        [tool(name=7)],
        [tool(parameters=[])],
        [tool(parameters={"type": "array"})],
        [tool(strict=1)],
        [tool(description=5)],
        [tool(), tool()],
        [tool(name=f"f{i}") for i in range(129)],
    ],
)
async def test_bad_tools(api: Api, tools: object) -> None:
    assert (await refused(api, CHAT, {"tools": tools}))["param"] == "tools"
    await api.alive()


async def test_tool_choice_of_another_type_is_refused_by_name(api: Api) -> None:
    """H23 and its siblings: allowed_tools and custom tools are named in the message."""
    for kind in ("allowed_tools", "custom"):
        error = await refused(api, CHAT, {"tools": [TOOL], "tool_choice": {"type": kind}})
        assert error["param"] == "tool_choice" and kind in error["message"]


NUMBERS = (
    *("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty"),
    *("repetition_penalty", "top_k", "n", "seed", "max_tokens", "min_tokens", "priority"),
)


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("raw", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
async def test_numbers_that_are_none(api: Api, path: str, raw: str) -> None:
    """H16: NaN and infinities, bare and as text."""
    for field, value in [*((name, raw) for name in NUMBERS), ("logit_bias", f'{{"5": {raw}}}')]:
        body = json.dumps(base(path))[:-1] + f', "{field}": {value}}}'
        answer = await api.http.post(
            path, content=body, headers={"content-type": "application/json"}
        )
        assert answer.status_code == 400, field
        error = json.loads(answer.text, parse_constant=pytest.fail)["error"]
        assert error["param"] == field
    await api.alive()


@pytest.mark.parametrize("stream", [False, True])
async def test_lone_surrogate(api: Api, stream: bool) -> None:
    """H18: refused before an answer begins."""
    message = '{"role":"user","content":"x %s y"}'
    template = '{"model":"scripted","max_tokens":1,"stream":%s,"messages":[' + message + "]}"
    for text, status in (("\\ud83d", 400), ("\\udc00\\ud83d", 400), ("\\ud83d\\ude00", 200)):
        body = template % (str(stream).lower(), text)
        answer = await api.http.post(
            CHAT, content=body, headers={"content-type": "application/json"}
        )
        assert answer.status_code == status, answer.text
        if status == 400:
            assert answer.headers["content-type"] == "application/json"
            assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (TEXT, '"prompt":"x"'),
        (TEXT, '"prompt":["a","x"]'),
        (TEXT, '"prompt":"a","stop":"x"'),
        (TEXT, '"prompt":"a","logit_bias":{"x":1}'),
        (TEXT, '"prompt":"a","cache_salt":"x"'),
        (CHAT, '"messages":[{"role":"user","content":[{"type":"text","text":"x"}]}]'),
        (CHAT, '"messages":[{"role":"user","content":"a"}],"chat_template_kwargs":{"a":"x"}'),
        ("/tokenize", '"prompt":"x"'),
    ],
)
async def test_lone_surrogate_elsewhere(api: Api, path: str, fields: str) -> None:
    body = '{"model":"scripted",' + fields.replace('"x"', '"\\ud83d"') + "}"
    answer = await api.http.post(path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["type"] == "invalid_request_error"
    await api.alive()


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt":"\xff"}',
        b'{"prompt":"\xed\xa0\xbd"}',
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"\xff\xfe",
        b"[" * 5000,
        b'{"n":' + b"9" * 5000,
    ],
)
async def test_broken_bodies(api: Api, body: bytes) -> None:
    for path in (CHAT, TEXT, "/tokenize", "/detokenize"):
        answer = await api.http.post(
            path, content=body, headers={"content-type": "application/json"}
        )
        assert answer.status_code == 400
        assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
async def test_content_type_must_be_json(api: Api, kind: str) -> None:
    answer = await api.http.post(
        TEXT, content=json.dumps(base(TEXT)), headers={"content-type": kind}
    )
    assert answer.status_code == 400
    assert "Content-Type" in answer.json()["error"]["message"]


async def test_token_ids_are_bounded_before_each_is_looked_at(api: Api) -> None:
    for prompt in ([1] * (MAX_PROMPT_IDS + 1), [[1] * (MAX_PROMPT_IDS // 8)] * 9):
        error = await refused(api, TEXT, {"prompt": prompt})
        assert (error["param"], error["code"]) == ("prompt", None)
        assert str(MAX_PROMPT_IDS) in error["message"]
    await api.alive()


async def test_context_overflow_names_the_numbers(api: Api) -> None:
    """H19: the limit, the prompt and what was asked."""
    error = await refused(api, TEXT, {"prompt": "12345678", "max_tokens": 253})
    assert error["code"] == "context_length_exceeded"
    for number in ("256", "8", "253", "261"):
        assert number in error["message"].replace(",", "").replace(":", "").split()
    error = await refused(api, TEXT, {"prompt": "x" * 256})
    assert error["code"] == "context_length_exceeded"
    assert (await refused(api, CHAT, {"max_tokens": 256}))["code"] == "context_length_exceeded"
    await api.alive()


async def test_unknown_model(api: Api) -> None:
    for path in (CHAT, TEXT):
        answer = await api.http.post(path, json={**base(path), "model": "absent"})
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "model_not_found"
        assert answer.json()["error"]["param"] == "model"


async def test_unknown_fields_are_ignored(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG", "flare.http"):
        answer = await api.complete(prompt="x", max_tokens=1, flavour="mint")
    assert answer.status_code == 200
    assert "'flavour'" in caplog.text and "mint" not in caplog.text


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_no_stop(api: Api, path: str) -> None:
    """H22: null and [] mean no stop."""
    stops: tuple[list[str] | None, ...] = (None, [])
    for stop in stops:
        answer = await api.http.post(path, json={**base(path), "stop": stop, "max_tokens": 2})
        assert answer.status_code == 200


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_seeds_of_the_whole_range(api: Api, path: str) -> None:
    for seed in (0, -1, 2**63 - 1, -(2**63)):
        fields = {**base(path), "seed": seed, "temperature": 1, "max_tokens": 4, "n": 2}
        texts = [(await api.http.post(path, json=fields)).json()["choices"] for _ in range(2)]
        assert texts[0] == texts[1]


async def test_bias_steers(api: Api) -> None:
    token = byte_ids("z")[0]
    answer = await api.complete(prompt="q", max_tokens=5, logit_bias={str(token): 100})
    assert answer.json()["choices"][0]["text"] == "zzzzz"


async def test_other_streams_are_unharmed(api: Api) -> None:
    quiet = (await api.complete(prompt="q", max_tokens=60, ignore_eos=True)).json()["choices"]
    api.parts.device.delay = 0.002
    async with api.http.stream(
        "POST",
        TEXT,
        json={"model": MODEL, "prompt": "q", "max_tokens": 60, "temperature": 0, "stream": True},
    ) as running:
        await refused(api, CHAT, {"logit_bias": {"99999999": 5}})
        await refused(api, TEXT, {"prompt": [""]})
        raw = (await running.aread()).decode()
    api.parts.device.delay = 0
    texts = [
        json.loads(line[6:])["choices"][0]["text"]
        for line in raw.splitlines()
        if line.startswith("data: {")
    ]
    assert "".join(texts) == quiet[0]["text"]
