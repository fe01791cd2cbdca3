"""The order of a message's events, from hand-made turns: thinking, text, tools, cuts."""

import json
from typing import Any

import pytest

from app.serving.anthropic.writer import MessageWriter
from app.serving.events import (
    CallArguments,
    CallEnd,
    CallStart,
    Finish,
    ReasoningDelta,
    TextDelta,
    TurnEvent,
)
from app.serving.wire import Usage

BLOCK = ["content_block_start", "content_block_delta", "content_block_stop"]
FIRST = [BLOCK[0], "ping", *BLOCK[1:]]


def run(*events: TurnEvent) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The message and all its events, parsed."""
    body = {"content": [], "stop_reason": None, "stop_sequence": None}
    writer = MessageWriter(body, "max_tokens")
    usage = Usage(9, 4, 3)
    text = writer.begin(usage) + "".join(map(writer.add, events)) + writer.end(usage)
    parsed = [json.loads(block.split("data: ", 1)[1]) for block in text.split("\n\n")[:-1]]
    assert parsed[0]["type"] == "message_start"
    assert [event["type"] for event in parsed[-2:]] == ["message_delta", "message_stop"]
    return writer.body, parsed


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events[1:-2]]


def call(number: int, *arguments: str) -> list[TurnEvent]:
    parts = [CallArguments(0, number, text) for text in arguments]
    return [CallStart(0, number, f"t{number}", "f"), *parts, CallEnd(0, number)]


def test_thinking_text_and_two_tools() -> None:
    body, events = run(
        ReasoningDelta(0, "hm"),
        TextDelta(0, "so"),
        *call(0, '{"a":', "1}"),
        *call(1, "{}"),
        Finish(0, "tool_calls"),
    )
    two_deltas = [BLOCK[0], BLOCK[1], BLOCK[1], BLOCK[2]]
    assert kinds(events) == FIRST + BLOCK + two_deltas + BLOCK
    assert body["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": ""},
        {"type": "text", "text": "so"},
        {"type": "tool_use", "id": "t0", "name": "f", "input": {"a": 1}},
        {"type": "tool_use", "id": "t1", "name": "f", "input": {}},
    ]
    assert body["stop_reason"] == "tool_use"
    starts = [e["content_block"] for e in events if e["type"] == BLOCK[0]]
    assert starts[2] == {"type": "tool_use", "id": "t0", "name": "f", "input": {}}
    deltas = [e["delta"] for e in events if e["type"] == BLOCK[1]]
    assert deltas[:2] == [
        {"type": "thinking_delta", "thinking": "hm"},
        {"type": "text_delta", "text": "so"},
    ]
    assert deltas[2]["type"] == "input_json_delta"
    assert json.loads(deltas[2]["partial_json"] + deltas[3]["partial_json"]) == {"a": 1}
    indexes = [event["index"] for event in events if "index" in event]
    assert indexes == sorted(indexes) and set(indexes) == {0, 1, 2, 3}


@pytest.mark.parametrize("arguments", ["", '{"a":', "[1]"])
def test_cut_arguments_are_an_empty_input(arguments: str) -> None:
    body, events = run(*call(0, *filter(None, [arguments])), Finish(0, "length"))
    assert body["content"][0]["input"] == {}
    assert body["stop_reason"] == "max_tokens"
    told = [e["delta"]["partial_json"] for e in events if e["type"] == BLOCK[1]]
    assert "".join(told) == arguments


def test_usage_is_told_at_both_ends() -> None:
    _, events = run(TextDelta(0, "a"), Finish(0, "stop"))
    start = events[0]["message"]["usage"]
    end = events[-2]["usage"]
    assert (start["input_tokens"], start["cache_read_input_tokens"]) == (6, 3)
    assert (start["output_tokens"], end["output_tokens"]) == (0, 4)
    assert end["input_tokens"] == 6


def test_a_stop_string_before_a_cut_call_is_not_a_stop_sequence() -> None:
    body, _ = run(*call(0, "{}"), Finish(0, "tool_calls", "x"))
    assert (body["stop_reason"], body["stop_sequence"]) == ("tool_use", None)
