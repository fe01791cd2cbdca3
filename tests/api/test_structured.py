"""Structured output over HTTP on a scripted model: fields, answers, streams, refusals."""

import asyncio
import json
import re
import threading
from typing import Any

import pytest

from engine.grammar.native import NativeCompiler
from engine.types import GrammarSpec
from tests.support.api import MODEL, Api, stream_events
from tests.support.words import piece_ids

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
USER = [{"role": "user", "content": "hi"}]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def named(schema: object, **fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "it", "schema": schema, **fields}}


ASKED: list[tuple[dict[str, Any], str]] = [
    ({"response_format": named(PERSON, strict=True)}, r"\{.*\}"),
    ({"response_format": named(PERSON, strict=False, description="a person")}, r"\{.*\}"),
    ({"response_format": {"type": "json_object", "schema": PERSON}}, r"\{.*\}"),
    ({"guided_json": PERSON}, r"\{.*\}"),
    ({"guided_json": json.dumps(PERSON)}, r"\{.*\}"),
    ({"structured_outputs": {"json": PERSON}}, r"\{.*\}"),
    ({"guided_regex": "[a-c]{5}"}, r"[a-c]{5}"),
    ({"structured_outputs": {"regex": "[a-c]{5}"}}, r"[a-c]{5}"),
    ({"guided_choice": ["red", "green"]}, r"red|green"),
    ({"structured_outputs": {"choice": ["red", "green"]}}, r"red|green"),
    ({"guided_grammar": 'start: "x" /[0-9]{3}/'}, r"x[0-9]{3}"),
    ({"guided_grammar": 'root ::= "x" [0-9] [0-9]'}, r"x[0-9]{2}"),
    ({"structured_outputs": {"grammar": 'start: "x" /[0-9]{3}/'}}, r"x[0-9]{3}"),
]


@pytest.mark.parametrize(("fields", "pattern"), ASKED, ids=lambda v: json.dumps(v)[:50])
@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_the_answer_has_the_form_asked_for(
    api: Api, path: str, fields: dict[str, Any], pattern: str
) -> None:
    prompt = {"messages": USER} if path == CHAT else {"prompt": "hi"}
    body = {**prompt, "max_tokens": 200, "temperature": 1, "seed": 3, **fields}
    whole = await api.http.post(path, json={"model": "scripted", **body})
    assert whole.status_code == 200, whole.text
    [choice] = whole.json()["choices"]
    text = choice["message"]["content"] if path == CHAT else choice["text"]
    assert re.fullmatch(f"(?s){pattern}", text)
    if text.startswith("{"):
        value = json.loads(text)
        assert list(value) == ["name", "age"]
        assert len(value["name"]) <= 6
        assert 0 <= value["age"] <= 99
    assert choice["finish_reason"] == "stop"
    streamed = (await stream_events(api.http, path, body)).of()
    parts = [c["delta"].get("content", "") if path == CHAT else c["text"] for c in streamed]
    assert "".join(parts) == text
    assert streamed[-1]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "text"}},
        {"response_format": None, "guided_json": None, "structured_outputs": None},
    ],
    ids=str,
)
async def test_text_is_free(api: Api, fields: dict[str, Any]) -> None:
    api.script(USER, piece_ids("ABC", "DEF"))
    answer = (await api.chat(messages=USER, **fields)).json()
    assert answer["choices"][0]["message"]["content"] == "ABCDEF"


async def test_choices_of_a_request_share_a_grammar(api: Api) -> None:
    body = {"messages": USER, "n": 5, "temperature": 1, "seed": 1, "max_tokens": 100}
    answer = (await api.chat(**body, response_format=named(PERSON))).json()
    texts = [choice["message"]["content"] for choice in answer["choices"]]
    assert all(set(json.loads(text)) == {"name", "age"} for text in texts)
    assert len(set(texts)) > 1


async def test_a_cut_answer_says_so(api: Api) -> None:
    answer = (await api.chat(messages=USER, max_tokens=3, response_format=named(PERSON))).json()
    [choice] = answer["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"].startswith("{")
    assert answer["usage"]["completion_tokens"] == 3


async def test_log_probabilities_are_there(api: Api) -> None:
    body = {"messages": USER, "guided_regex": "abc", "logprobs": True, "top_logprobs": 2}
    [choice] = (await api.chat(**body)).json()["choices"]
    entries = choice["logprobs"]["content"]
    assert "".join(entry["token"] for entry in entries) == "abc" == choice["message"]["content"]


DEEP = '{"properties":{"a":' * 5000 + "{}" + "}}" * 5000
BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"response_format": {"type": "xml"}}, "response_format", "json_schema"),
    ({"response_format": {"type": "json_schema"}}, "response_format", "go together"),
    ({"response_format": named("a")}, "response_format", "must be a JSON schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format", "name"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}},
        "response_format",
        "name",
    ),
    (
        {"response_format": named({"properties": {"a": {"pattern": "^hi\\!$["}}})},
        "response_format",
        "^hi\\!$[",
    ),
    ({"response_format": named({"not": {}})}, "response_format", "not supported: 'not'"),
    ({"guided_json": DEEP}, "guided_json", "nested more than 64 deep"),
    ({"guided_json": {"$ref": "#"}}, "guided_json", "allows no text at all"),
    ({"guided_json": 3}, "guided_json", "must be a JSON schema"),
    ({"guided_regex": "("}, "guided_regex", "unclosed group"),
    ({"guided_regex": ""}, "guided_regex", "at least 1 character"),
    ({"guided_choice": []}, "guided_choice", "at least one string"),
    ({"guided_choice": ["a", 1]}, "guided_choice", "at least one string"),
    ({"guided_grammar": "start: x"}, "guided_grammar", "unknown name"),
    ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern", "not supported"),
    ({"structured_outputs": {}}, "structured_outputs", "exactly one"),
    ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "exactly one"),
    (
        {"structured_outputs": {"regex": "a", "whitespace_pattern": " "}},
        "structured_outputs",
        "'whitespace_pattern' is not supported",
    ),
    ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice", "exclude each other"),
    (
        {"response_format": {"type": "json_object"}, "guided_regex": "a"},
        "guided_regex",
        "exclude each other",
    ),
]


@pytest.mark.parametrize(("fields", "param", "message"), BAD, ids=lambda v: str(v)[:50])
@pytest.mark.parametrize("stream", [False, True])
async def test_what_cannot_be_served_is_refused_by_name(
    api: Api, fields: dict[str, Any], param: str, message: str, stream: bool
) -> None:
    """H39, H40: 400 naming the field and the fault; never free text."""
    answer = await api.chat(messages=USER, stream=stream, **fields)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert message in error["message"]
    await api.idle()


NOT: dict[str, Any] = {"type": "object", "properties": {"a": {"not": {}}}}
FORCED = {"name": "f", "parameters": NOT}


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"messages": USER, "response_format": named(NOT)}),
        (
            CHAT,
            {
                "messages": USER,
                "tools": [{"type": "function", "function": FORCED}],
                "tool_choice": "required",
            },
        ),
        (TEXT, {"prompt": "hi", "guided_json": NOT}),
        (
            "/v1/responses",
            {"input": "hi", "tools": [{"type": "function", **FORCED}], "tool_choice": "required"},
        ),
    ],
)
async def test_a_wrong_grammar_is_told_before_a_length(
    api: Api, path: str, fields: dict[str, Any]
) -> None:
    """A shorter request would be wrong all the same."""
    limit = "max_output_tokens" if "input" in fields else "max_tokens"
    answer = await api.http.post(path, json={"model": MODEL, limit: 10**6, **fields})
    assert answer.status_code == 400
    assert "'not'" in answer.json()["error"]["message"]
    assert answer.json()["error"]["code"] is None


async def test_a_schema_too_deep_for_the_body_is_refused(api: Api) -> None:
    """H40, when the schema is not text."""
    body = '{"model":"scripted","messages":[],"guided_json":' + DEEP + "}"
    headers = {"content-type": "application/json"}
    answer = await api.http.post(CHAT, content=body, headers=headers)
    assert answer.status_code == 400
    assert "recursion" in answer.json()["error"]["message"]


async def test_others_are_served_while_a_grammar_is_compiled(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H40: other requests are not delayed."""
    compiling, go_on = threading.Event(), threading.Event()
    compile_native = NativeCompiler.compile

    def wait(self: NativeCompiler, spec: GrammarSpec) -> Any:
        compiling.set()
        assert go_on.wait(30), "nothing else was served meanwhile"
        return compile_native(self, spec)

    monkeypatch.setattr(NativeCompiler, "compile", wait)
    monkeypatch.setattr("engine.grammar.compiler.COMPILE_SECONDS", 60)
    asking = asyncio.create_task(api.chat(messages=USER, max_tokens=4, guided_regex="a"))
    assert await asyncio.to_thread(compiling.wait, 30)
    assert (await api.chat(messages=USER, max_tokens=4)).status_code == 200
    go_on.set()
    answer = await asking
    assert answer.status_code == 200, answer.text


async def test_a_client_that_leaves_while_its_grammar_is_compiled(api: Api) -> None:
    slow = {"type": "integer", "multipleOf": 49999}
    asking = asyncio.create_task(api.chat(messages=USER, guided_json=slow))
    await asyncio.sleep(0.05)
    asking.cancel()
    await api.alive()
