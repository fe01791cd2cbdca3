"""The order of a response's events, from hand-made turns: reasoning, text, calls, cuts."""

import json
from typing import Any

import pytest

from app.errors import ApiError
from app.protocol.responses import ResponseRequest
from app.serving.events import (
    CallArguments,
    CallEnd,
    CallStart,
    Finish,
    ReasoningDelta,
    TextDelta,
    TokenEntry,
    TurnEvent,
)
from app.serving.logprobs import TokenLabels
from app.serving.responses.body import finish_body, new_body
from app.serving.responses.writer import PADDED, ResponseWriter
from app.serving.wire import Usage
from engine.text.info import GenerationDefaults
from engine.types import TokenLogprobs
from tests.support.words import piece_ids, text_assets

ITEM = ["response.output_item.added", "response.output_item.done"]
PART = ["response.content_part.added", "response.content_part.done"]
TEXT = ["response.output_text.delta", "response.output_text.done"]
THOUGHT = ["response.reasoning_text.delta", "response.reasoning_text.done"]
CALL = ["response.function_call_arguments.delta", "response.function_call_arguments.done"]
MESSAGE = [ITEM[0], PART[0], TEXT[0], TEXT[1], PART[1], ITEM[1]]
REASONING = [ITEM[0], PART[0], THOUGHT[0], THOUGHT[1], PART[1], ITEM[1]]
FUNCTION = [ITEM[0], CALL[0], CALL[1], ITEM[1]]


def writer(labels: TokenLabels | None = None, *, obfuscate: bool = False) -> ResponseWriter:
    request = ResponseRequest(model="m", input="hi")
    body = new_body("resp_1", request, GenerationDefaults(), store=True)
    return ResponseWriter(body, labels, obfuscate=obfuscate)


def run(made: ResponseWriter, *events: TurnEvent) -> list[dict[str, Any]]:
    """All events, parsed, from the first to the last."""
    text = made.begin() + "".join(map(made.add, events))
    finish_body(made.body, Usage(5, 4, 2, 1))
    text += made.end()
    parsed = [json.loads(block.split("data: ", 1)[1]) for block in text.split("\n\n")[:-1]]
    assert [event["sequence_number"] for event in parsed] == list(range(len(parsed)))
    return parsed


def kinds(events: list[dict[str, Any]]) -> list[str]:
    assert [e["type"] for e in events[:2]] == ["response.created", "response.in_progress"]
    return [event["type"] for event in events[2:-1]]


def call(number: int, *arguments: str) -> list[TurnEvent]:
    parts = [CallArguments(0, number, text) for text in arguments]
    return [CallStart(0, number, f"call_{number}", "f"), *parts, CallEnd(0, number)]


def test_reasoning_text_and_two_calls() -> None:
    made = writer()
    events = run(
        made,
        ReasoningDelta(0, "hm"),
        TextDelta(0, "so"),
        *call(0, '{"a":1}'),
        *call(1, "{}"),
        Finish(0, "tool_calls"),
    )
    assert kinds(events) == REASONING + MESSAGE + FUNCTION + FUNCTION
    output = made.body["output"]
    types = ["reasoning", "message", "function_call", "function_call"]
    assert [item["type"] for item in output] == types
    assert [item["status"] for item in output] == ["completed"] * 4
    assert output[0]["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert (output[2]["call_id"], output[2]["name"]) == ("call_0", "f")
    assert json.loads(output[2]["arguments"]) == {"a": 1}
    indexes = [e["output_index"] for e in events if "output_index" in e]
    assert indexes == sorted(indexes) and set(indexes) == {0, 1, 2, 3}
    assert len({item["id"] for item in output}) == 4
    assert events[-1]["type"] == "response.completed"
    usage = events[-1]["response"]["usage"]
    assert usage["input_tokens_details"] == {"cached_tokens": 2, "cache_write_tokens": 0}
    assert usage["output_tokens_details"] == {"reasoning_tokens": 1}


def test_deltas_join_to_the_done_events() -> None:
    made = writer()
    events = run(
        made,
        TextDelta(0, "a"),
        TextDelta(0, ""),
        TextDelta(0, "\u2028b"),
        *call(0, '{"x"', ":2}"),
        Finish(0, "tool_calls"),
    )
    for delta, done, key in ((*TEXT, "text"), (*CALL, "arguments")):
        joined = "".join(e["delta"] for e in events if e["type"] == delta)
        (whole,) = [e[key] for e in events if e["type"] == done]
        assert joined == whole


@pytest.mark.parametrize(
    ("arguments", "status"), [('{"a":', "incomplete"), ('{"a":1}', "completed")]
)
def test_a_cut_call(arguments: str, status: str) -> None:
    made = writer()
    events = run(made, *call(0, arguments), Finish(0, "length"))
    assert kinds(events) == FUNCTION
    assert made.body["output"][0]["status"] == status
    assert events[-1]["type"] == "response.incomplete"
    assert made.body["incomplete_details"] == {"reason": "max_output_tokens"}


def test_a_call_that_the_model_left_is_incomplete() -> None:
    made = writer()
    events = run(made, *call(0, '{"a":'), Finish(0, "stop"))
    assert made.body["output"][0]["status"] == "incomplete"
    assert events[-1]["type"] == "response.completed"


def test_nothing_said_is_an_empty_message() -> None:
    made = writer()
    events = run(made, Finish(0, "stop"))
    assert kinds(events) == [kind for kind in MESSAGE if kind != TEXT[0]]
    assert made.body["output"][0]["content"][0]["text"] == ""


def test_cut_within_reasoning_has_no_message() -> None:
    made = writer()
    assert kinds(run(made, ReasoningDelta(0, "hm"), Finish(0, "length"))) == REASONING
    assert made.body["output"][0]["status"] == "incomplete"


def test_failure() -> None:
    made = writer()
    made.begin()
    made.add(TextDelta(0, "a"))
    data = made.fail(ApiError(500, "broken", type="server_error")).split("data: ")[1]
    event = json.loads(data)
    assert event["type"] == "response.failed"
    assert event["response"]["status"] == "failed"
    assert event["response"]["error"] == {"code": "server_error", "message": "broken"}


def test_log_probabilities_belong_to_the_text() -> None:
    """Those of reasoning and calls are left out; those of held-back text come with it."""
    labels = TokenLabels(text_assets().tokenizer)
    ids = piece_ids("ABC", "one", " two", "DEF")
    entries = [(TokenEntry(TokenLogprobs(token, -0.5), 0),) for token in ids]
    made = writer(labels)
    events = run(
        made,
        TextDelta(0, "", entries[0]),
        ReasoningDelta(0, "ABC"),
        TextDelta(0, "", entries[1]),
        TextDelta(0, "", entries[2]),
        TextDelta(0, "one two"),
        TextDelta(0, "", entries[3]),
        *call(0, "{}"),
        Finish(0, "tool_calls"),
    )
    (delta,) = [e for e in events if e["type"] == TEXT[0]]
    (done,) = [e for e in events if e["type"] == TEXT[1]]
    tokens = [entry["token"] for entry in delta["logprobs"]]
    assert tokens == ["one", " two"]
    assert done["logprobs"] == delta["logprobs"]
    assert made.body["output"][1]["content"][0]["logprobs"] == delta["logprobs"]


@pytest.mark.parametrize("size", [1, 31, 32, 33])
def test_obfuscation_hides_the_size_of_a_delta(size: int) -> None:
    events = run(writer(obfuscate=True), TextDelta(0, "x" * size), Finish(0, "stop"))
    (delta,) = [e for e in events if e["type"] == TEXT[0]]
    assert (len(delta["delta"]) + len(delta["obfuscation"])) % PADDED == 0
    assert delta["obfuscation"]
