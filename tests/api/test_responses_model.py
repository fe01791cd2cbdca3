"""Responses and messages on the default model, in a process of its own, with both clients."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import anthropic
import openai
import pytest
from pydantic import BaseModel

from tests.support.clients import Clients, clients_of

QUESTION = "What is the capital of France?"
ASK: list[Any] = [{"role": "user", "content": QUESTION}]
COLOURS = "Name a colour and a number."
COLOUR_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "blue"]}, "number": {"enum": [1, 2]}},
    "required": ["colour", "number"],
    "additionalProperties": False,
}


class Colour(BaseModel):
    colour: Literal["red", "blue"]
    number: Literal[1, 2]


@pytest.fixture(scope="module")
def clients(default_core: Path) -> Iterator[Clients]:
    with clients_of(default_core) as both:
        yield both


def test_three_apis_say_the_same(clients: Clients) -> None:
    ask: dict[str, Any] = {"model": clients.model, "temperature": 0}
    chat = clients.openai.chat.completions.create(messages=ASK, max_tokens=12, **ask)
    text = chat.choices[0].message.content
    assert text and "Paris" in text
    response = clients.openai.responses.create(input=QUESTION, max_output_tokens=12, **ask)
    assert response.output_text == text
    with clients.openai.responses.stream(input=QUESTION, **ask) as events:
        streamed = events.get_final_response()
    assert streamed.status == "completed" and streamed.output_text.startswith(text)
    told: dict[str, Any] = {
        "model": clients.model,
        "max_tokens": 12,
        "messages": ASK,
        "extra_body": {"temperature": 0},
    }
    message = clients.anthropic.messages.create(**told)
    assert [block.text for block in message.content if block.type == "text"] == [text]
    with clients.anthropic.messages.stream(**told) as stream:
        assert "".join(stream.text_stream) == text
        final = stream.get_final_message()
    assert final.stop_reason == message.stop_reason == "end_turn"
    assert chat.usage is not None and response.usage is not None
    for usage in (message.usage, final.usage):
        total = usage.input_tokens + (usage.cache_read_input_tokens or 0)
        assert total == chat.usage.prompt_tokens == response.usage.input_tokens
    counted = clients.anthropic.messages.count_tokens(model=clients.model, messages=ASK)
    assert counted.input_tokens == chat.usage.prompt_tokens


def test_a_conversation_is_cached(clients: Clients) -> None:
    long = "The quick brown fox jumps over the lazy dog. " * 12
    first = clients.openai.responses.create(
        model=clients.model, input=long, max_output_tokens=4, temperature=0
    )
    second = clients.openai.responses.create(
        model=clients.model,
        input="And then?",
        previous_response_id=first.id,
        max_output_tokens=4,
        temperature=0,
    )
    assert first.usage is not None and second.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens
    assert second.usage.input_tokens_details.cached_tokens >= 64


def test_answers_follow_their_schema(clients: Clients) -> None:
    parsed = clients.openai.responses.parse(
        model=clients.model, input=COLOURS, text_format=Colour, temperature=1, max_output_tokens=60
    )
    assert parsed.status == "completed"
    assert parsed.output_parsed is not None and parsed.output_parsed.number in (1, 2)
    message = clients.anthropic.messages.create(
        model=clients.model,
        max_tokens=60,
        messages=[{"role": "user", "content": COLOURS}],
        output_config={"format": {"type": "json_schema", "schema": COLOUR_SCHEMA}},
    )
    (block,) = message.content
    assert block.type == "text" and Colour.model_validate_json(block.text)
    assert message.stop_reason == "end_turn"


def test_bad_schemas_name_their_field(clients: Clients) -> None:
    bad: dict[str, Any] = {"type": "string", "pattern": "^hi\\!$["}
    with pytest.raises(openai.BadRequestError) as caught:
        clients.openai.responses.create(
            model=clients.model,
            input="hi",
            text={"format": {"type": "json_schema", "name": "x", "schema": bad}},
        )
    assert caught.value.param == "text"
    with pytest.raises(anthropic.BadRequestError) as refused:
        clients.anthropic.messages.create(
            model=clients.model,
            max_tokens=9,
            messages=ASK,
            output_config={"format": {"type": "json_schema", "schema": bad}},
        )
    assert "output_config" in str(refused.value)
    dangling = {"type": "object", "properties": {"a": {"$ref": "#/absent"}}}
    with pytest.raises(openai.BadRequestError) as tool:
        clients.openai.responses.create(
            model=clients.model,
            input="hi",
            tools=[{"type": "function", "name": "f", "parameters": dangling, "strict": False}],
            tool_choice="required",
        )
    assert tool.value.param == "tools"
    with pytest.raises(anthropic.BadRequestError, match="tools"):
        clients.anthropic.messages.create(
            model=clients.model,
            max_tokens=9,
            messages=ASK,
            tools=[{"name": "f", "input_schema": dangling}],
            tool_choice={"type": "any"},
        )
