"""Tool calls over HTTP on a scripted model: reading, forcing, streaming, history."""

import json
from typing import Any

import openai
import pytest

from tests.support.api import MODEL, behaviour, stream_events
from tests.support.bundled import Bundled
from tests.support.dialogue import (
    CHAT,
    HI,
    OTHER,
    TOOL,
    both,
    dialogue_api,
    joined_message,
    say,
)
from tests.support.scripted import scripted_engine
from tests.support.words import TEMPLATE

WEATHER = '{"city":"A}","unit":"c","n":3}'
CALL = f'<tool_call>{{"name":"w","arguments":{WEATHER}}}</tool_call>'
CITY = {"id": "c1", "type": "function", "function": {"name": "w", "arguments": '{"city": "Bern"}'}}


@pytest.mark.parametrize("size", [1, 2, 3, 5, 200])
async def test_a_call_is_read_at_any_split(size: int) -> None:
    """H36, H37: one token per byte, several tokens per delta, all at once."""
    parts = scripted_engine(behaviour(), max_model_len=1024, num_blocks=257)
    async with dialogue_api(parts=parts, engine=Bundled(parts.engine, size)) as api:
        say(api, CALL, tools=[TOOL])
        choice, events = await both(api, tools=[TOOL])
        message = choice["message"]
        assert message["content"] is None
        [call] = message["tool_calls"]
        assert call["type"] == "function" and call["id"].startswith("call_")
        assert call["function"] == {"name": "w", "arguments": WEATHER}
        assert choice["finish_reason"] == "tool_calls"
        ids = [p["id"] for c in events.of() for p in c["delta"].get("tool_calls", []) if "id" in p]
        assert len(ids) == 1


async def test_arguments_are_streamed_as_they_come() -> None:
    async with dialogue_api() as api:
        say(api, CALL, tools=[TOOL])
        _, events = await both(api, tools=[TOOL])
        deltas = [c["delta"] for c in events.of() if "tool_calls" in c["delta"]]
        assert len(deltas) > len(WEATHER) / 2


async def test_text_and_several_calls() -> None:
    second = '<tool_call>{"name": "other"}</tool_call>'
    async with dialogue_api() as api:
        tools = [TOOL, OTHER]
        say(api, f"Let me see.\n{CALL}\n{second}\n", tools=tools)
        choice, _ = await both(api, tools=tools)
        assert choice["message"]["content"] == "Let me see."
        calls = choice["message"]["tool_calls"]
        assert [c["function"]["name"] for c in calls] == ["w", "other"]
        assert calls[1]["function"]["arguments"] == "{}"
        assert calls[0]["id"] != calls[1]["id"]


async def test_without_parallel_calls_the_first_ends_the_turn() -> None:
    async with dialogue_api() as api:
        say(api, f"{CALL}{CALL}{CALL}", tools=[TOOL])
        choice, _ = await both(api, tools=[TOOL], parallel_tool_calls=False)
        assert len(choice["message"]["tool_calls"]) == 1
        assert choice["finish_reason"] == "tool_calls"
        end = CALL.index(WEATHER) + len(WEATHER)
        assert len(choice["token_ids"]) == end
        usage = (await api.chat(messages=HI, tools=[TOOL], parallel_tool_calls=False)).json()
        assert usage["usage"]["completion_tokens"] == end
        await api.idle()


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "absent", "arguments": {}}</tool_call>',
        "<tool_call>not json</tool_call>",
        'an end <tool_call>{"name": "w", "argum',
        "a < b",
    ],
)
async def test_what_is_no_call_is_text(text: str) -> None:
    async with dialogue_api() as api:
        say(api, text, tools=[TOOL])
        choice, _ = await both(api, tools=[TOOL])
        assert choice["message"]["content"] == text
        assert "tool_calls" not in choice["message"]
        assert choice["finish_reason"] == "stop"


async def test_a_call_that_is_cut() -> None:
    """H38's sibling: the part that is there, and finish_reason length."""
    async with dialogue_api() as api:
        say(api, CALL, tools=[TOOL])
        limit = CALL.index('"A}"')
        choice, _ = await both(api, tools=[TOOL], max_tokens=limit)
        [call] = choice["message"]["tool_calls"]
        assert call["function"]["arguments"] == '{"city":'
        assert choice["finish_reason"] == "length"


@pytest.mark.parametrize(("said", "stop"), [(CALL, '"unit"'), (CALL[: CALL.index('"unit"')], "x")])
async def test_a_call_that_stops_within_its_arguments_was_not_made(said: str, stop: str) -> None:
    """By a stop string or an end token: nobody should call a function with a part of them."""
    async with dialogue_api() as api:
        say(api, said, tools=[TOOL])
        choice, _ = await both(api, tools=[TOOL], stop=stop)
        [call] = choice["message"]["tool_calls"]
        assert call["function"]["arguments"] == '{"city":"A}",'
        assert choice["finish_reason"] == "stop"


async def test_a_half_met_stop_string_within_a_call_is_not_lost() -> None:
    async with dialogue_api() as api:
        say(api, CALL, tools=[TOOL])
        choice, _ = await both(api, tools=[TOOL], stop=['"c","n":4', "</tool_call>!"])
        assert choice["message"]["tool_calls"][0]["function"]["arguments"] == WEATHER
        assert choice["finish_reason"] == "tool_calls"


async def test_none_tells_the_model_of_no_tools() -> None:
    async with dialogue_api() as api:
        say(api, CALL)
        choice, _ = await both(api, tools=[TOOL], tool_choice="none")
        assert choice["message"]["content"] == CALL
        told = [
            (await api.http.post("/tokenize", json={"messages": HI, **fields})).json()["count"]
            for fields in ({}, {"tools": [TOOL], "tool_choice": "none"}, {"tools": [TOOL]})
        ]
        assert told[0] == told[1] < told[2]


async def test_tokenize_counts_what_the_answer_counts() -> None:
    for template in (TEMPLATE, None):
        async with dialogue_api(template) if template else dialogue_api() as api:
            body = {"messages": HI, "tools": [TOOL, OTHER]}
            told = (await api.http.post("/tokenize", json=body)).json()
            usage = (await api.chat(**body, max_tokens=1)).json()["usage"]
            assert told["count"] == usage["prompt_tokens"]
            back = await api.http.post("/detokenize", json={"tokens": told["tokens"]})
            assert "w" in back.json()["prompt"] and "other" in back.json()["prompt"]


async def test_a_template_without_tools_is_told_of_them_in_the_system_message() -> None:
    async with dialogue_api(TEMPLATE) as api:
        body = {"messages": [{"role": "system", "content": "Be brief."}, *HI], "tools": [TOOL]}
        told = (await api.http.post("/tokenize", json=body)).json()["tokens"]
        back = (await api.http.post("/detokenize", json={"tokens": told})).json()["prompt"]
        assert back.startswith("<|im_start|>system\nBe brief.\n\n")
        assert json.dumps(TOOL["function"]) in back and "<tool_call>" in back
        assert back.count("<|im_start|>system") == 1


async def test_tools_come_before_the_question_where_no_system_message_is_allowed() -> None:
    template = TEMPLATE.replace("and not loop.first", "")
    async with dialogue_api(template) as api:
        told = (await api.http.post("/tokenize", json={"messages": HI, "tools": [TOOL]})).json()
        back = (await api.http.post("/detokenize", json={"tokens": told["tokens"]})).json()
        assert back["prompt"].startswith("<|im_start|>user\nYou can call functions.")
        assert back["prompt"].endswith("\n\nhi<|im_end|>\n<|im_start|>assistant\n")


FORCED: list[tuple[Any, set[str]]] = [
    ("required", {"w", "other"}),
    ({"type": "function", "function": {"name": "w"}}, {"w"}),
    ({"type": "function", "function": {"name": "other"}}, {"other"}),
]


@pytest.mark.parametrize(("choice", "names"), FORCED)
@pytest.mark.parametrize("temperature", [0, 1.5])
async def test_forced_calls_follow_their_schemas(
    choice: Any, names: set[str], temperature: float
) -> None:
    """Whatever the model would say, with any template, strict or not, streamed or not."""
    for template in (TEMPLATE, None):
        async with dialogue_api(template) if template else dialogue_api() as api:
            told, _ = await both(
                api,
                tools=[TOOL, OTHER],
                tool_choice=choice,
                temperature=temperature,
                seed=5,
                max_tokens=300,
                parallel_tool_calls=False,
            )
            [call] = told["message"]["tool_calls"]
            assert told["message"]["content"] is None
            assert told["finish_reason"] in ("tool_calls", "length")
            assert call["function"]["name"] in names
            if told["finish_reason"] == "tool_calls" and call["function"]["name"] == "w":
                arguments = json.loads(call["function"]["arguments"])
                assert set(arguments) == {"city", "n"} and len(arguments["city"]) <= 6
                assert arguments["n"] in (1, 2)


@pytest.mark.parametrize("limit", [1, 2, 12, 20])
async def test_a_forced_call_that_is_cut_before_it_starts(limit: int) -> None:
    """H38: finish_reason length, and never an empty tool_calls."""
    async with dialogue_api() as api:
        choice, _ = await both(api, tools=[TOOL], tool_choice="required", max_tokens=limit)
        assert choice["finish_reason"] == "length"
        assert "tool_calls" not in choice["message"]


async def test_forced_calls_and_other_grammars_exclude_each_other() -> None:
    async with dialogue_api() as api:
        for field in ({"response_format": {"type": "json_object"}}, {"guided_regex": "a"}):
            answer = await api.chat(messages=HI, tools=[TOOL], tool_choice="required", **field)
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == "tool_choice"
        bad = {"type": "function", "function": {"name": "f", "parameters": {"not": {}}}}
        answer = await api.chat(messages=HI, tools=[bad], tool_choice="required")
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "tools"
        assert "not" in answer.json()["error"]["message"]
        await api.alive()


@pytest.mark.parametrize("fields", [{}, {"tools": [TOOL]}])
async def test_history_with_calls_reaches_the_template(fields: dict[str, Any]) -> None:
    """H20: null content beside calls; arguments as an object for a template that takes one."""
    messages: list[dict[str, Any]] = [
        *HI,
        {"role": "assistant", "content": None, "tool_calls": [CITY]},
        {"role": "tool", "tool_call_id": "c1", "content": "7"},
    ]
    async with dialogue_api() as api:
        body = {"messages": messages, **fields}
        told = (await api.http.post("/tokenize", json=body)).json()
        back = (await api.http.post("/detokenize", json={"tokens": told["tokens"]})).json()
        assert "<w|Bern>" in back["prompt"] and "tool\n7" in back["prompt"]
        assert "None" not in back["prompt"] and "null" not in back["prompt"]
        assert (await api.chat(**body, max_tokens=2)).status_code == 200


async def test_choices_have_their_own_calls() -> None:
    async with dialogue_api() as api:
        fields = {
            "messages": HI,
            "tools": [TOOL],
            "tool_choice": "required",
            "parallel_tool_calls": False,
            "n": 3,
            "temperature": 1,
            "seed": 11,
            "max_tokens": 200,
        }
        whole = (await api.chat(**fields)).json()["choices"]
        events = await stream_events(api.http, CHAT, fields)
        made = []
        for index, choice in enumerate(whole):
            [call] = choice["message"]["tool_calls"]
            function = call["function"]
            assert joined_message(events, index)["calls"] == [
                (function["name"], function["arguments"])
            ]
            made.append(function["arguments"])
        assert len(set(made)) > 1


async def test_the_openai_client_makes_a_round_trip() -> None:
    async with dialogue_api() as api:
        say(api, f"Let me see. {CALL}", tools=[TOOL])
        async with openai.AsyncOpenAI(base_url=f"{api.url}/v1", api_key="none") as client:
            messages: list[Any] = [*HI]
            asked: dict[str, Any] = {"model": MODEL, "temperature": 0, "tools": [TOOL]}
            answer = await client.chat.completions.create(messages=messages, **asked)
            message = answer.choices[0].message
            assert message.tool_calls
            [call] = message.tool_calls
            assert call.type == "function" and json.loads(call.function.arguments)["n"] == 3
            messages.append(message.model_dump(exclude_none=True))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": "21"})
            again = await client.chat.completions.create(messages=messages, max_tokens=4, **asked)
            assert again.choices[0].message.content
            async with client.chat.completions.stream(messages=HI, **asked) as stream:
                async for _ in stream:
                    pass
                final = await stream.get_final_completion()
            [streamed] = final.choices[0].message.tool_calls or []
            assert streamed.function.arguments == WEATHER
