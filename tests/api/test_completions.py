"""Text completions over HTTP: prompts, stops, echo, log probabilities, usage."""

import asyncio
from typing import Any

import pytest

from tests.support.api import Api, serving_api, stream_events
from tests.support.words import byte_ids, piece_ids, text_assets

PATH = "/v1/completions"


async def same(api: Api, **fields: Any) -> list[dict[str, Any]]:
    """Ask for the answer whole and streamed; assert that they agree; return the whole choices."""
    whole = (await api.complete(return_token_ids=True, **fields)).json()
    events = await stream_events(api.http, PATH, {"return_token_ids": True, **fields})
    assert events.done
    for choice in whole["choices"]:
        chunks = events.of(choice["index"])
        assert "".join(c["text"] for c in chunks) == choice["text"]
        assert [i for c in chunks for i in c["token_ids"]] == choice["token_ids"]
        assert [c["finish_reason"] for c in chunks if c["finish_reason"]] == [
            choice["finish_reason"]
        ]
        assert chunks[-1]["finish_reason"] == choice["finish_reason"]
        for key in choice["logprobs"] or ():
            assert [x for c in chunks for x in (c["logprobs"] or {key: []})[key]] == (
                choice["logprobs"][key]
            )
    choices: list[dict[str, Any]] = whole["choices"]
    return choices


async def test_end_token_ends_with_stop_and_is_not_shown(api: Api) -> None:
    api.script("x", piece_ids("one", " two"))
    (choice,) = await same(api, prompt="x", max_tokens=20)
    assert choice["text"] == "one two"
    assert choice["finish_reason"] == "stop"
    assert choice["token_ids"] == [*piece_ids("one", " two"), 0]
    usage = (await api.complete(prompt="x", max_tokens=20)).json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (1, 3, 4)


async def test_max_tokens_ends_with_length(api: Api) -> None:
    api.script("x", piece_ids("one", " two", " three"))
    (choice,) = await same(api, prompt="x", max_tokens=2)
    assert (choice["text"], choice["finish_reason"]) == ("one two", "length")


@pytest.mark.parametrize("extra", [{}, {"max_tokens": None}])
async def test_default_is_sixteen_tokens(api: Api, extra: dict[str, None]) -> None:
    """H11: null is the same as absent."""
    api.script("x", piece_ids(b"a" * 40))
    (choice,) = await same(api, prompt="x", **extra)
    assert choice["text"] == "a" * 16


async def test_default_is_cut_to_the_context(api: Api) -> None:
    prompt = "p" * 250
    api.script(prompt, piece_ids(b"a" * 40))
    (choice,) = await same(api, prompt=prompt)
    assert (choice["text"], choice["finish_reason"]) == ("a" * 6, "length")


@pytest.mark.parametrize("stop", ["DEFHIJK", ["zzz", "EFHIJ"], ["HIJK", "FHI"], "AB"])
async def test_stop_across_tokens_is_never_sent(api: Api, stop: Any) -> None:
    """H1: no piece of a stop string is ever sent."""
    pieces = piece_ids("ABC", "DEF", "HI", "JK", "one")
    api.script("x", pieces)
    text = "ABCDEFHIJKone"
    stops = [stop] if isinstance(stop, str) else stop
    ends = {s: text.index(s) + len(s) for s in stops if s in text}
    first = min(ends, key=ends.__getitem__)
    (choice,) = await same(api, prompt="x", max_tokens=20, stop=stop, logprobs=1)
    assert choice["text"] == text[: text.index(first)]
    assert choice["finish_reason"] == "stop"
    await api.idle()


async def test_stop_string_ends_the_sequence_in_the_engine(api: Api) -> None:
    api.script("x", piece_ids("ABC", "END", *[b"a"] * 200))
    api.parts.device.delay = 0.02  # the chain waits for nobody: give the loop time to see the end
    (choice,) = await same(api, prompt="x", max_tokens=200, stop="END")
    assert choice["text"] == "ABC"
    assert choice["token_ids"] == piece_ids("ABC", "END")
    await api.idle()
    assert len(api.parts.device.replays) < 50  # of 400


@pytest.mark.parametrize(("max_tokens", "reason"), [(2, "length"), (20, "stop")])
async def test_held_text_is_flushed_at_the_end(api: Api, max_tokens: int, reason: str) -> None:
    """H2: text held back for a stop string is sent at the end."""
    api.script("x", piece_ids("ABC", "DEF"))
    (choice,) = await same(api, prompt="x", max_tokens=max_tokens, stop=["DEFHI"], logprobs=0)
    assert (choice["text"], choice["finish_reason"]) == ("ABCDEF", reason)
    assert choice["logprobs"]["tokens"] == ["ABC", "DEF"]


async def test_stop_string_can_be_kept(api: Api) -> None:
    api.script("x", piece_ids("ABC", "DEF", "HI"))
    (choice,) = await same(
        api, prompt="x", max_tokens=9, stop=["CDE"], include_stop_str_in_output=True
    )
    assert (choice["text"], choice["finish_reason"]) == ("ABCDE", "stop")


async def test_stop_strings_do_not_count_within_min_tokens(api: Api) -> None:
    api.script("x", piece_ids("ABC", "END", "one", "END", "JK"))
    (choice,) = await same(api, prompt="x", max_tokens=9, stop=["END"], min_tokens=2)
    assert choice["text"] == "ABCENDone"


async def test_stop_token_ids_and_ignore_eos(api: Api) -> None:
    ids = piece_ids("one", "<|im_end|>", " two", " three")
    api.script("x", ids)
    (choice,) = await same(
        api, prompt="x", max_tokens=9, ignore_eos=True, stop_token_ids=piece_ids(" three")
    )
    assert (choice["text"], choice["finish_reason"]) == ("one two", "stop")
    assert choice["token_ids"] == ids
    (choice,) = await same(
        api, prompt="x", max_tokens=3, ignore_eos=True, skip_special_tokens=False
    )
    assert choice["text"] == "one<|im_end|> two"


async def test_characters_split_over_tokens_come_whole(api: Api) -> None:
    """H3: each character is whole, in one delta."""
    api.script("x", piece_ids("\U0001f600\u4e2d!".encode(), b"\xf0\x9f"))
    events = await stream_events(api.http, PATH, {"prompt": "x", "max_tokens": 30})
    texts = [c["text"] for c in events.of() if c["text"]]
    assert texts == ["\U0001f600", "\u4e2d", "!", "\ufffd"]
    (choice,) = await same(api, prompt="x", max_tokens=30, logprobs=1)
    assert choice["text"] == "\U0001f600\u4e2d!\ufffd"
    assert choice["logprobs"]["tokens"][:2] == ["bytes:\\xf0", "bytes:\\x9f"]
    assert len(choice["logprobs"]["tokens"]) == 10


async def test_continuation_of_a_split_character(api: Api) -> None:
    prompt = list(byte_ids("x")) + piece_ids(b"\xf0\x9f")
    scripts = api.parts.device.behaviour.scripts
    assert isinstance(scripts, dict)
    scripts[tuple(prompt)] = piece_ids(b"\x98\x80", "one")
    (choice,) = await same(api, prompt=prompt, max_tokens=9)
    assert choice["text"] == "\U0001f600one"
    (choice,) = await same(api, prompt=prompt, max_tokens=9, echo=True, logprobs=0)
    assert choice["text"] == "x\U0001f600one"
    assert choice["logprobs"]["text_offset"] == [0, 1, 1, 1, 1, 2]


async def test_echo_with_logprobs(api: Api) -> None:
    """H6: offsets follow the text that was sent."""
    api.script("Alpha beta", piece_ids("one", " two", b"a", b"b", b"c"))
    (choice,) = await same(api, prompt="Alpha beta", echo=True, logprobs=2, max_tokens=5)
    lists = choice["logprobs"]
    assert choice["text"] == "Alpha betaone twoabc"
    assert "".join(lists["tokens"]) == choice["text"]
    assert lists["text_offset"] == [*range(10), 10, 13, 17, 18, 19]
    assert lists["token_logprobs"][0] is None and lists["top_logprobs"][0] is None
    assert all(value < 0 for value in lists["token_logprobs"][1:])
    assert all(2 <= len(top) <= 3 for top in lists["top_logprobs"][1:])


async def test_echo_offsets_of_every_choice_start_behind_its_own_prompt(api: Api) -> None:
    said = piece_ids("one", b"x", " two")
    api.script("a", said)
    api.script("longer prompt", said)
    choices = await same(
        api, prompt=["a", "longer prompt"], n=2, echo=True, logprobs=1, max_tokens=3
    )
    for choice, prompt in zip(choices, ("a", "a", "longer prompt", "longer prompt"), strict=True):
        length = len(prompt)
        assert choice["text"] == prompt + "onex two"
        offsets = choice["logprobs"]["text_offset"]
        assert offsets == [*range(length), length, length + 3, length + 4]


async def test_echo_without_logprobs(api: Api) -> None:
    api.script("x", piece_ids("one"))
    (choice,) = await same(api, prompt="x", echo=True, max_tokens=5)
    assert (choice["text"], choice["logprobs"]) == ("xone", None)


async def test_scoring_call(api: Api) -> None:
    """H12: echo, logprobs and no token to generate."""
    prompt = "Your answer: Yes"
    fields = {"prompt": prompt, "echo": True, "logprobs": 1, "max_tokens": 0}
    (choice,) = await same(api, **fields)
    values = choice["logprobs"]["token_logprobs"]
    assert choice["text"] == prompt
    assert choice["finish_reason"] == "length"
    assert len(values) == len(prompt) and values[0] is None and None not in values[1:]
    usage = (await api.complete(**fields)).json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(prompt), 0)
    await api.alive()


async def test_scores_do_not_depend_on_the_cache(api: Api) -> None:
    """H30: cold and cached scores are the same."""
    fields = {"echo": True, "logprobs": 1, "max_tokens": 1}
    prompt = "0123456789abcdef" * 7 + "tail."
    cold = (await api.complete(prompt=prompt, **fields)).json()["choices"]
    warm = (await api.complete(prompt=prompt, **fields)).json()["choices"]
    shared = (await api.complete(prompt=prompt[:112] + "other", **fields)).json()["choices"]
    assert cold == warm
    assert len(shared[0]["logprobs"]["tokens"]) == 118
    assert (
        shared[0]["logprobs"]["token_logprobs"][:112]
        == (cold[0]["logprobs"]["token_logprobs"][:112])
    )


async def test_no_tokens_wanted(api: Api) -> None:
    (choice,) = await same(api, prompt="x", max_tokens=0)
    assert (choice["text"], choice["finish_reason"]) == ("", "length")


async def test_several_prompts_and_choices(api: Api) -> None:
    api.script("a", piece_ids("one"))
    api.script("b", piece_ids(" two"))
    choices = await same(api, prompt=["a", "b"], n=2, max_tokens=5)
    assert [c["index"] for c in choices] == [0, 1, 2, 3]
    assert [c["text"] for c in choices] == ["one", "one", " two", " two"]
    body = (await api.complete(prompt=["a", "b"], n=2, best_of=2, max_tokens=5)).json()
    assert body["usage"]["prompt_tokens"] == 2
    assert body["usage"]["completion_tokens"] == 8


async def test_a_stop_string_ends_its_own_choice_only(api: Api) -> None:
    api.script("a", piece_ids("one", "END", " two"))
    api.script("b", piece_ids(*["one", " two"] * 6))
    first, second = await same(api, prompt=["a", "b"], max_tokens=20, stop="END")
    assert (first["text"], first["finish_reason"]) == ("one", "stop")
    assert (second["text"], second["finish_reason"]) == ("one two" * 6, "stop")
    await api.idle()


async def test_exactly_one_begin_token() -> None:
    begin = piece_ids("<|im_start|>")[0]
    async with serving_api(text=text_assets(begin=begin)) as api:
        hi = list(byte_ids("hi"))
        prompts: list[tuple[Any, list[int]]] = [
            ("hi", [begin, *hi]),
            ("<|im_start|>hi", [begin, *hi]),  # spelled out: not doubled
            ("", [begin]),  # an empty text is a begin token, not an empty batch row
            (hi, hi),  # ids are taken as they are
        ]
        for prompt, ids in prompts:
            (choice,) = await same(api, prompt=prompt, max_tokens=2)
            assert choice["prompt_token_ids"] == ids
        answer = await api.complete(prompt="", add_special_tokens=False)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt")
        await api.alive()


async def test_token_id_prompts(api: Api) -> None:
    api.script("ab", piece_ids("one"))
    (text,) = await same(api, prompt="ab", max_tokens=5)
    (ids,) = await same(api, prompt=list(byte_ids("ab")), max_tokens=5)
    lists = await same(api, prompt=[list(byte_ids("ab")), list(byte_ids("ab"))], max_tokens=5)
    assert [text["text"], ids["text"], *(c["text"] for c in lists)] == ["one"] * 4


async def test_prompts_have_their_own_seeds_unless_one_is_asked_for(api: Api) -> None:
    fields = {"prompt": ["q"] * 3, "temperature": 2, "max_tokens": 12}
    for seed, different in ((None, 3), (7, 1)):
        choices = (await api.complete(**fields, seed=seed)).json()["choices"]
        assert len({choice["text"] for choice in choices}) == different


async def test_choices_have_their_own_seeds(api: Api) -> None:
    fields = {"prompt": "q", "n": 3, "temperature": 1, "seed": 7, "max_tokens": 12}
    choices = await same(api, **fields)
    assert len({tuple(c["token_ids"]) for c in choices}) == 3
    (alone,) = await same(api, **{**fields, "n": 1})
    assert alone["token_ids"] == choices[0]["token_ids"]


async def test_cached_tokens_are_reported(api: Api) -> None:
    prompt = "0123456789abcdef" * 3
    first = (await api.complete(prompt=prompt, max_tokens=1)).json()["usage"]
    second = (await api.complete(prompt=prompt, max_tokens=1)).json()["usage"]
    salted = (await api.complete(prompt=prompt, max_tokens=1, cache_salt="s")).json()["usage"]
    cached = [u["prompt_tokens_details"]["cached_tokens"] for u in (first, second, salted)]
    assert cached == [0, 32, 0]


async def test_a_request_beyond_the_cache_is_refused_and_the_next_one_is_served() -> None:
    """The cache holds 64 tokens, the model 256: nothing waits for blocks that never come."""
    async with serving_api(num_blocks=5, block_size=16) as api:
        for fields in ({"prompt": "x" * 100, "max_tokens": 1}, {"prompt": "x", "max_tokens": 64}):
            answer = await api.complete(**fields)
            assert answer.status_code == 400
            assert answer.json()["error"]["code"] == "context_length_exceeded"
            assert "64" in answer.json()["error"]["message"]
        for prompt in ("x", "y" * 40):
            body = (await api.complete(prompt=prompt, max_tokens=64 - len(prompt))).json()
            assert body["usage"]["total_tokens"] == 64
        await api.alive()


async def test_a_preempted_answer_has_no_gap_and_no_repeat() -> None:
    prompts = ["a" * 20, "b" * 20, "c" * 20]
    async with serving_api(num_blocks=10, block_size=8, max_num_seqs=3) as api:
        alone = [(await api.complete(prompt=p, max_tokens=40, logprobs=1)).json() for p in prompts]
        fields: dict[str, Any] = {"max_tokens": 40, "logprobs": 1}
        usage = {"stream_options": {"include_usage": True}}
        asked = [stream_events(api.http, PATH, {**fields, "prompt": p, **usage}) for p in prompts]
        together = await asyncio.gather(*asked)
        registry = api.parts.engine.metrics.registry
        assert (registry.get_sample_value("flare_preemptions_total") or 0) > 0
        for whole, events in zip(alone, together, strict=True):
            choice = whole["choices"][0]
            assert "".join(c["text"] for c in events.of()) == choice["text"]
            values = [
                v
                for c in events.of()
                for v in (c["logprobs"] or {"token_logprobs": []})["token_logprobs"]
            ]
            assert values == choice["logprobs"]["token_logprobs"]
            counts = events.chunks[-1]["usage"]
            assert (counts["prompt_tokens"], counts["completion_tokens"]) == (20, 40)


async def test_answer_names_model_and_core(api: Api) -> None:
    body = (await api.complete(prompt="x")).json()
    assert body["object"] == "text_completion"
    assert body["model"] == "scripted"
    assert body["system_fingerprint"] == "fp_" + "0" * 12
    assert body["id"].startswith("cmpl-")


async def test_priority_orders_the_queue() -> None:
    async with serving_api(max_num_seqs=1) as api:
        api.parts.device.delay = 0.01
        ended: list[int] = []

        async def ask(priority: int) -> None:
            await api.complete(prompt="q", max_tokens=8, ignore_eos=True, priority=priority)
            ended.append(priority)

        first = asyncio.create_task(ask(0))
        await asyncio.sleep(0.03)
        await asyncio.gather(first, *(ask(priority) for priority in (5, -5, 1)))
        assert ended == [0, -5, 1, 5]


async def test_best_of_tells_the_likeliest() -> None:
    """The best by the mean log probability of the tokens, best first; usage counts all."""
    async with serving_api() as api:
        fields = {"prompt": ["x", "y"], "temperature": 1.5, "seed": 4, "max_tokens": 5}
        every = (await api.complete(**fields, n=4, logprobs=0)).json()["choices"]
        body = (await api.complete(**fields, n=2, best_of=4)).json()
        assert [c["index"] for c in body["choices"]] == [0, 1, 2, 3]
        assert all(c["logprobs"] is None for c in body["choices"])
        assert body["usage"]["completion_tokens"] == 2 * 4 * 5
        assert body["usage"]["prompt_tokens"] == 2
        for prompt in range(2):
            means = {
                c["text"]: sum(c["logprobs"]["token_logprobs"]) / 5
                for c in every[prompt * 4 : prompt * 4 + 4]
            }
            best = sorted(means, key=lambda text: -means[text])[:2]
            assert [c["text"] for c in body["choices"][prompt * 2 : prompt * 2 + 2]] == best


@pytest.mark.parametrize(
    "fields", [{"n": 3, "best_of": 2}, {"best_of": 5, "stream": True}, {"best_of": 129}]
)
async def test_best_of_that_cannot_be(api: Api, fields: dict[str, Any]) -> None:
    """H62."""
    answer = await api.complete(prompt="x", **fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "best_of"


async def test_prompt_logprobs(api: Api) -> None:
    ids = piece_ids("one", " two", " three")
    body = (await api.complete(prompt=ids, max_tokens=1, prompt_logprobs=2)).json()
    first, *others = body["choices"][0]["prompt_logprobs"]
    assert first is None and len(others) == 2
    for token, entry in zip(ids[1:], others, strict=True):
        assert str(token) in entry and 2 <= len(entry) <= 3
        assert {e["rank"] for e in entry.values()} >= {1, 2}
    echoed = (await api.complete(prompt=ids, max_tokens=0, echo=True, logprobs=0)).json()
    scores = echoed["choices"][0]["logprobs"]["token_logprobs"]
    assert scores[0] is None
    assert [e[str(t)]["logprob"] for t, e in zip(ids[1:], others, strict=True)] == scores[1:]


async def test_prompt_logprobs_beside_echo_have_their_own_counts(api: Api) -> None:
    ids = piece_ids("one", " two", " three")
    fields = {"prompt": ids, "max_tokens": 0, "echo": True}
    [choice] = (await api.complete(**fields, logprobs=1, prompt_logprobs=5)).json()["choices"]
    [alone] = (await api.complete(**fields, logprobs=1)).json()["choices"]
    assert choice["logprobs"] == alone["logprobs"]
    assert all(len(entry) >= 5 for entry in choice["prompt_logprobs"][1:])


async def test_prompt_logprobs_are_not_streamed(api: Api) -> None:
    answer = await api.complete(prompt="x", prompt_logprobs=1, stream=True)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "prompt_logprobs"
