"""Chat completions over HTTP: rendering, roles, log probabilities, choices, usage."""

from typing import Any

import pytest

from engine.text.info import GenerationDefaults
from tests.support.api import Api, serving_api, stream_events
from tests.support.words import byte_ids, chat_ids, piece_ids, text_assets

PATH = "/v1/chat/completions"
HI: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "lookup", "arguments": '{"city": "Bern"}'},
}


async def same(api: Api, **fields: Any) -> list[dict[str, Any]]:
    """Ask for the answer whole and streamed; assert that they agree; return the whole choices."""
    whole = (await api.chat(return_token_ids=True, **fields)).json()
    events = await stream_events(api.http, PATH, {"return_token_ids": True, **fields})
    assert events.done
    assert events.chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    for choice in whole["choices"]:
        chunks = events.of(choice["index"])
        text = "".join(c["delta"].get("content", "") for c in chunks)
        assert text == choice["message"]["content"]
        assert [i for c in chunks for i in c.get("token_ids", [])] == choice["token_ids"]
        assert chunks[-1]["finish_reason"] == choice["finish_reason"]
        if choice["logprobs"]:
            entries = [e for c in chunks for e in (c["logprobs"] or {"content": []})["content"]]
            assert entries == choice["logprobs"]["content"]
    choices: list[dict[str, Any]] = whole["choices"]
    return choices


async def prompt_of(api: Api, messages: list[dict[str, Any]], **fields: Any) -> str:
    """The text that messages are rendered to, with special tokens."""
    tokens = (await api.http.post("/tokenize", json={"messages": messages, **fields})).json()
    back = await api.http.post("/detokenize", json={"tokens": tokens["tokens"]})
    text: str = back.json()["prompt"]
    return text


async def test_answer(api: Api) -> None:
    api.script(HI, piece_ids("one", " two", "<|im_end|>"))
    body = (await api.chat(messages=HI)).json()
    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    (choice,) = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": "one two", "refusal": None}
    assert choice["finish_reason"] == "stop"
    prompt = len(chat_ids(api.text, HI))
    assert body["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": 3,
        "total_tokens": prompt + 3,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    await same(api, messages=HI)


@pytest.mark.parametrize("extra", [{}, {"max_tokens": None}, {"max_completion_tokens": None}])
async def test_default_length_is_the_rest_of_the_context(api: Api, extra: dict[str, None]) -> None:
    prompt = len(chat_ids(api.text, HI))
    api.script(HI, piece_ids(b"a" * 300))
    body = (await api.chat(messages=HI, **extra)).json()
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["total_tokens"] == 256
    assert body["usage"]["completion_tokens"] == 256 - prompt


async def test_either_name_limits_the_length(api: Api) -> None:
    api.script(HI, piece_ids(b"a" * 30))
    for fields in ({"max_tokens": 3}, {"max_completion_tokens": 3}):
        (choice,) = await same(api, messages=HI, **fields)
        assert choice["message"]["content"] == "aaa"


async def test_logprobs_have_their_own_alternatives(api: Api) -> None:
    api.script(HI, piece_ids("one", " two", "\u4e2d", b"\xe4"))
    (choice,) = await same(api, messages=HI, logprobs=True, top_logprobs=3)
    entries = choice["logprobs"]["content"]
    assert [e["token"] for e in entries] == ["one", " two", "\u4e2d", "bytes:\\xe4"]
    assert entries[2]["bytes"] == list("\u4e2d".encode())
    assert entries[3]["bytes"] == [0xE4]
    assert all(len(e["top_logprobs"]) == 3 for e in entries)
    assert all(e["top_logprobs"][0]["token"] == e["token"] for e in entries)
    assert len({str(e["top_logprobs"]) for e in entries}) == len(entries)
    (choice,) = await same(api, messages=HI, logprobs=True)
    assert [e["top_logprobs"] for e in choice["logprobs"]["content"]] == [[]] * 4


async def test_choices_stream_apart(api: Api) -> None:
    """H7: role first, one finish chunk last, per choice."""
    fields = {"messages": HI, "n": 3, "temperature": 1, "seed": 3, "max_tokens": 6}
    choices = await same(api, **fields)
    assert len({tuple(c["token_ids"]) for c in choices}) == 3
    events = await stream_events(api.http, PATH, fields)
    assert len({(c["id"], c["created"]) for c in events.chunks}) == 1
    for index in range(3):
        chunks = events.of(index)
        assert chunks[0]["delta"]["role"] == "assistant"
        assert all("role" not in c["delta"] for c in chunks[1:])
        assert [c["finish_reason"] for c in chunks[:-1]] == [None] * (len(chunks) - 1)
        assert chunks[-1]["finish_reason"] is not None
    usage = (await api.chat(**fields)).json()["usage"]
    assert usage["prompt_tokens"] == len(chat_ids(api.text, HI))


async def test_roles_and_parts_are_rendered(api: Api) -> None:
    messages: list[dict[str, Any]] = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    ]
    assert await prompt_of(api, messages) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\na\nb<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


async def test_tool_turns_reach_the_template(api: Api) -> None:
    messages: list[dict[str, Any]] = [
        *HI,
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "7"},
    ]
    prompt = await prompt_of(api, messages)
    assert '"name": "lookup"' in prompt and '"city": "Bern"' in prompt
    assert "<|im_start|>tool\n7<|im_end|>" in prompt
    assert "None" not in prompt and "null" not in prompt
    assert (await api.chat(messages=messages, max_tokens=2)).status_code == 200


async def test_template_that_knows_tool_calls_gets_them() -> None:
    template = (
        "{% for m in messages %}{{ m.role }}:{{ m.content or '' }}"
        "{% for c in m.tool_calls or [] %}({{ c.function.name }}|{{ c.function.arguments.city }})"
        "{% endfor %};{% endfor %}"
    )
    async with serving_api(text=text_assets(template=template)) as api:
        turn = {"role": "assistant", "content": None, "tool_calls": [CALL]}
        messages: list[dict[str, Any]] = [*HI, turn]
        assert await prompt_of(api, messages) == "user:hi;assistant:(lookup|Bern);"


@pytest.mark.parametrize("stream", [False, True])
async def test_template_refusal_is_told(api: Api, stream: bool) -> None:
    """H43: the template's own sentence, as a 400."""
    late = {"role": "system", "content": "late"}
    answer = await api.chat(messages=[*HI, late], stream=stream)
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["error"]["message"] == "The system message must come first."
    assert "{%" not in answer.text
    await api.alive()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "template",
    [
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{{ messages.append(1) }}",
        "{{ 1 / 0 }}",
    ],
)
async def test_template_code_is_not_run_and_not_shown(template: str, stream: bool) -> None:
    """H53: templates run in a sandbox."""
    async with serving_api(text=text_assets(template=template)) as api:
        answer = await api.chat(messages=HI, stream=stream)
        assert answer.status_code == 400
        assert answer.json()["error"]["type"] == "invalid_request_error"
        for leak in ("{{", "__", "Traceback", "function"):
            assert leak not in answer.text
        assert (await api.complete(prompt="x", max_tokens=1)).status_code == 200


async def test_a_conversation_without_any_token_is_refused() -> None:
    async with serving_api(text=text_assets(template="{{ '' }}")) as api:
        answer = await api.chat(messages=HI, max_tokens=1)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "messages"
        assert (await api.complete(prompt="x", max_tokens=1)).status_code == 200


async def test_tokenize_of_a_prompt_takes_no_tools(api: Api) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    answer = await api.http.post("/tokenize", json={"prompt": "abc", "tools": [tool]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools")


@pytest.mark.parametrize("written", ["<|im_start|>", ""])
async def test_a_begin_token_of_template_and_tokenizer_is_there_once(written: str) -> None:
    """Whether the template writes it or not: the same ids for the answer and for /tokenize."""
    begin = piece_ids("<|im_start|>")[0]
    template = written + "{{ messages[0].content }}"
    async with serving_api(text=text_assets(template=template, begin=begin)) as api:
        (choice,) = await same(api, messages=HI, max_tokens=1)
        assert choice["message"]["content"]
        body = (await api.chat(messages=HI, max_tokens=1, return_token_ids=True)).json()
        told = (await api.http.post("/tokenize", json={"messages": HI})).json()["tokens"]
        assert body["prompt_token_ids"] == told == [begin, *byte_ids("hi")]


async def test_model_without_template() -> None:
    async with serving_api(text=text_assets(template=None)) as api:
        answer = await api.chat(messages=HI)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "messages"


async def test_template_fields(api: Api) -> None:
    bare = await prompt_of(api, HI, add_generation_prompt=False)
    assert bare == "<|im_start|>user\nhi<|im_end|>\n"
    toned = await prompt_of(api, HI, chat_template_kwargs={"tone": "dry"})
    assert toned.endswith("[dry]<|im_start|>assistant\n")
    begun: list[dict[str, Any]] = [*HI, {"role": "assistant", "content": "It is"}]
    assert (await prompt_of(api, begun, continue_final_message=True)).endswith("assistant\nIt is")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"continue_final_message": True}, "continue_final_message"),
        (
            {"continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
        ),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"self": 1}}, "chat_template_kwargs"),
    ],
)
async def test_template_field_contradictions(api: Api, fields: dict[str, Any], param: str) -> None:
    answer = await api.chat(messages=HI, **fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


async def test_model_recommends_sampling_values() -> None:
    text = text_assets(defaults=GenerationDefaults(temperature=0.0))
    async with serving_api(text=text) as api:
        fields = {"messages": HI, "max_tokens": 12, "return_token_ids": True, "temperature": None}
        first, second = [(await api.chat(**fields)).json()["choices"][0] for _ in range(2)]
        assert first["token_ids"] == second["token_ids"]
        own = [(await api.chat(**{**fields, "temperature": 2})).json() for _ in range(2)]
        assert own[0]["choices"][0]["token_ids"] != own[1]["choices"][0]["token_ids"]


async def test_long_prompts_are_handled_beside_the_event_loop(api: Api) -> None:
    messages = [{"role": "user", "content": "word " * 8000}]
    answer = await api.chat(messages=messages)
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    counted = (await api.http.post("/tokenize", json={"messages": messages})).json()
    assert counted["count"] > 40000


async def test_prompt_logprobs(api: Api) -> None:
    body = (await api.chat(messages=HI, max_tokens=1, prompt_logprobs=0)).json()
    ids = chat_ids(api.text, HI)
    first, *others = body["prompt_logprobs"]
    assert first is None and len(others) == len(ids) - 1
    for token, entry in zip(ids[1:], others, strict=True):
        assert list(entry) == [str(token)] and entry[str(token)]["logprob"] <= 0


async def test_fields_that_ask_for_nothing(api: Api) -> None:
    fields = {
        "store": False,
        "service_tier": "auto",
        "metadata": {"a": "b"},
        "user": "someone",
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "functions": [],
    }
    body = (await api.chat(messages=HI, max_tokens=3, **fields)).json()
    plain = (await api.chat(messages=HI, max_tokens=3)).json()
    assert body["choices"] == plain["choices"]
    assert body["system_fingerprint"] == plain["system_fingerprint"]
