"""Models that think, through responses and messages: how they are told, how it is shown."""

from typing import Any

import pytest

from tests.support.api import MODEL, Api, serving_api
from tests.support.words import TEMPLATE, byte_ids, text_assets

ALWAYS = TEMPLATE + "{% if add_generation_prompt %}<think>\n{% endif %}"
SWITCHED = TEMPLATE + (
    "{% if add_generation_prompt and enable_thinking is defined and not enable_thinking %}"
    "<think>\n\n</think>\n\n{% endif %}"
)
SPOKEN = "<think>\nhm\n</think>\n\nYes."
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
TURNS: list[dict[str, Any]] = [{"role": "user", "content": "w"}]


def script(api: Api, text: str, **variables: Any) -> None:
    """Make the model write ``text`` after the conversation, rendered with ``variables``."""
    assert api.text.chat_template is not None
    prompt = api.text.chat_template.render(TURNS, **variables)
    api.script_rendered(prompt, list(byte_ids(text)))


async def respond(api: Api, **fields: Any) -> dict[str, Any]:
    body = {"model": MODEL, "input": "w", "temperature": 0, **fields}
    answer: dict[str, Any] = (await api.http.post(RESPONSES, json=body)).json()
    return answer


async def message(api: Api, **fields: Any) -> dict[str, Any]:
    body = {"model": MODEL, "max_tokens": 90, "messages": TURNS, "temperature": 0, **fields}
    answer: dict[str, Any] = (await api.http.post(MESSAGES, json=body)).json()
    return answer


async def test_thinking_is_an_item_and_a_block_of_its_own() -> None:
    async with serving_api(text=text_assets(template=SWITCHED)) as api:
        script(api, SPOKEN, enable_thinking=True)
        body = await respond(api, reasoning={"effort": "low"})
        thought, said = body["output"]
        assert (thought["type"], said["type"]) == ("reasoning", "message")
        assert thought["content"] == [{"type": "reasoning_text", "text": "hm"}]
        assert said["content"][0]["text"] == "Yes."
        details = body["usage"]["output_tokens_details"]
        assert 0 < details["reasoning_tokens"] < body["usage"]["output_tokens"]
        assert body["reasoning"]["effort"] == "low"
        told = await message(api, thinking={"type": "adaptive"})
        assert told["content"] == [
            {"type": "thinking", "thinking": "hm", "signature": ""},
            {"type": "text", "text": "Yes."},
        ]
        await api.idle()


async def test_thinking_is_turned_off() -> None:
    """By name, and in messages also when nothing is said of it."""
    async with serving_api(text=text_assets(template=SWITCHED)) as api:
        script(api, "No.", enable_thinking=False)
        script(api, SPOKEN)
        body = await respond(api, reasoning={"effort": "none"})
        assert [item["type"] for item in body["output"]] == ["message"]
        assert body["output"][0]["content"][0]["text"] == "No."
        assert [item["type"] for item in (await respond(api))["output"]] == ["reasoning", "message"]
        for fields in ({}, {"thinking": {"type": "disabled"}}):
            told = await message(api, **fields)
            assert told["content"] == [{"type": "text", "text": "No."}]
        await api.idle()


async def test_a_model_that_always_thinks_says_so() -> None:
    async with serving_api(text=text_assets(template=ALWAYS)) as api:
        script(api, "hm\n</think>\n\nYes.")
        body = await respond(api)
        assert [item["type"] for item in body["output"]] == ["reasoning", "message"]
        refused = await respond(api, reasoning={"effort": "none"})
        assert refused["error"]["param"] == "reasoning"
        assert "always thinks" in refused["error"]["message"]
        told = await message(api)
        assert [block["type"] for block in told["content"]] == ["thinking", "text"]
        disabled = await message(api, thinking={"type": "disabled"})
        assert "always thinks" in disabled["error"]["message"]
        await api.idle()


async def test_reasoning_can_be_sent_back() -> None:
    """A reasoning item, or a thinking block, before a message is a part of the same turn."""
    template = SWITCHED.replace("{{ m.content }}", "{{ m.reasoning_content }}{{ m.content }}")
    async with serving_api(text=text_assets(template=template)) as api:
        script(api, SPOKEN)
        first = await respond(api)
        again = [*TURNS, *first["output"], *TURNS]
        chained = await respond(api, previous_response_id=first["id"])
        repeated = await respond(api, input=again)
        assert chained["usage"]["input_tokens"] == repeated["usage"]["input_tokens"]
        assert chained["output"][-1]["content"] == repeated["output"][-1]["content"]
        blocks = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "Yes."}]
        turns = [*TURNS, {"role": "assistant", "content": blocks}, *TURNS]
        told = await message(api, messages=turns)
        usage = told["usage"]
        off = len(byte_ids("<think>\n\n</think>\n\n"))
        counted = usage["input_tokens"] + usage["cache_read_input_tokens"]
        assert counted == chained["usage"]["input_tokens"] + off
        await api.idle()


@pytest.mark.parametrize("effort", ["low", "none", None])
async def test_cut_within_thinking(effort: str | None) -> None:
    async with serving_api(text=text_assets(template=SWITCHED)) as api:
        script(api, SPOKEN)
        script(api, SPOKEN, enable_thinking=True)
        script(api, "No.", enable_thinking=False)
        body = await respond(api, reasoning={"effort": effort}, max_output_tokens=10)
        if effort == "none":
            assert body["status"] == "completed"
        else:
            assert [item["type"] for item in body["output"]] == ["reasoning"]
            assert body["status"] == body["output"][0]["status"] == "incomplete"
        await api.idle()
