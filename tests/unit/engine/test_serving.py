"""The real engine on the scripted device: texts, streams, scheduling seen from outside."""

import asyncio
from itertools import pairwise

import pytest

from engine.types import FinishReason
from tests.support.scripted import Behaviour
from tests.support.serving import collect, ids, request, serving

PROMPTS = [[(7 * i + j) % 250 + 1 for j in range(3 + 11 * i)] for i in range(9)]


@pytest.mark.parametrize("mixed", [True, False])
async def test_concurrent_requests_get_their_own_texts(mixed: bool) -> None:
    async with serving(mixed=mixed) as parts:
        requests = [request(str(i), p, 20 + i) for i, p in enumerate(PROMPTS)]
        streams = parts.engine.submit(requests)
        answers = await asyncio.gather(*map(collect, streams))
        for i, (prompt, deltas) in enumerate(zip(PROMPTS, answers, strict=True)):
            assert ids(deltas) == parts.expected(prompt, 20 + i)
            assert [d.finish_reason for d in deltas[:-1]] == [None] * (len(deltas) - 1)
            assert deltas[-1].finish_reason is FinishReason.LENGTH
        used = {graph for graph, _ in parts.device.replays}
        assert any(g.startswith("mixed") for g in used) is mixed


async def test_a_script_ends_with_the_end_token() -> None:
    behaviour = Behaviour(scripts={(5, 6): [10, 11, 12]})
    async with serving(behaviour) as parts:
        [stream] = parts.engine.submit([request("a", [5, 6], 20)])
        deltas = await collect(stream)
        assert ids(deltas) == [10, 11, 12, 0]
        assert deltas[-1].finish_reason is FinishReason.STOP


async def test_ignore_eos_stop_ids_and_min_tokens() -> None:
    behaviour = Behaviour(scripts={(5,): [10, 11, 12, 0, 13]})
    async with serving(behaviour) as parts:
        streams = parts.engine.submit(
            [
                request("ignore", [5], 6, ignore_eos=True),
                request("stop", [5], 6, stop_token_ids=frozenset({12})),
                request("min", [5], 6, stop_token_ids=frozenset({11}), min_tokens=3),
                request("limit", [5], 2, stop_token_ids=frozenset({11})),
            ]
        )
        ignore, stop, least, limit = [await collect(s) for s in streams]
        assert ids(ignore) == [10, 11, 12, 0, 13, 0]
        assert ignore[-1].finish_reason is FinishReason.LENGTH
        assert ids(stop) == [10, 11, 12]
        assert stop[-1].finish_reason is FinishReason.STOP
        assert 11 not in ids(least)[:3]
        assert len(ids(least)) >= 3
        assert ids(limit) == [10, 11]
        assert limit[-1].finish_reason is FinishReason.STOP


@pytest.mark.parametrize("length", [1, 15, 16, 17, 31, 32, 33])
async def test_a_full_prompt_hit_recomputes_its_last_token(length: int) -> None:
    prompt = list(range(1, length + 1))
    async with serving() as parts:
        answers = []
        for name in ("first", "second"):
            [stream] = parts.engine.submit([request(name, prompt, 5, logprobs=3)])
            answers.append(await collect(stream))
        first, second = answers
        assert ids(first) == ids(second) == parts.expected(prompt, 5)
        assert [d.logprobs for d in first] == [d.logprobs for d in second]
        assert first[0].cached_tokens == 0
        assert second[0].cached_tokens == (length - 1) // 16 * 16


async def test_salts_are_cache_domains() -> None:
    prompt = list(range(1, 50))
    async with serving() as parts:
        cached = []
        for i, salt in enumerate(["S", None, "T", "S", None]):
            [stream] = parts.engine.submit([request(str(i), prompt, 1, salt=salt)])
            cached.append((await collect(stream))[0].cached_tokens)
        assert cached == [0, 0, 0, 48, 48]


async def test_one_wake_up_delivers_one_delta_per_step() -> None:
    async with serving() as parts:
        [stream] = parts.engine.submit([request("a", [1, 2, 3], 6)])
        deltas = await collect(stream)
        assert [len(d.token_ids) for d in deltas] == [1] * 6
        assert len(parts.device.replays) == 6


@pytest.mark.parametrize("mixed", [True, False])
async def test_a_preempted_sequence_goes_on_without_gap_or_repeat(mixed: bool) -> None:
    prompts = [[i + 1] * 20 for i in range(3)]
    async with serving(mixed=mixed, num_blocks=10, block_size=8, max_num_seqs=3) as parts:
        streams = parts.engine.submit([request(str(i), p, 40) for i, p in enumerate(prompts)])
        answers = await asyncio.gather(*map(collect, streams))
        for prompt, deltas in zip(prompts, answers, strict=True):
            assert ids(deltas) == parts.expected(prompt, 40)
        registry = parts.engine.metrics.registry
        assert (registry.get_sample_value("flare_preemptions_total") or 0) > 0


async def test_seeded_draws_do_not_depend_on_batch_mates() -> None:
    def sampled(name: str, seed: int, prompt: list[int]) -> object:
        return request(name, prompt, 12, temperature=1.5, seed=seed)

    async with serving(max_num_seqs=4) as parts:
        texts = set()
        for round_, mates in enumerate([0, 1, 3, 6]):
            batch = [sampled(f"{round_}", 42, [9, 9, 9])]
            batch += [sampled(f"{round_}-{i}", 7 + i, [i + 1] * (5 + 9 * i)) for i in range(mates)]
            answers = await asyncio.gather(*map(collect, parts.engine.submit(batch)))
            texts.add(tuple(ids(answers[0])))
        assert len(texts) == 1
        [other] = parts.engine.submit([sampled("other", 43, [9, 9, 9])])
        assert tuple(ids(await collect(other))) not in texts


@pytest.mark.parametrize("mixed", [True, False])
async def test_decodes_get_a_token_in_every_step_while_prompts_arrive(mixed: bool) -> None:
    async with serving(mixed=mixed, max_num_seqs=8, num_blocks=200) as parts:
        parts.device.delay = 0.005
        [stream] = parts.engine.submit([request("a", [1, 2], 60)])
        await anext(stream)
        begin = len(parts.device.replays)
        others = parts.engine.submit([request(f"p{i}", [i + 3] * 200, 1) for i in range(8)])
        await collect(stream)
        replays = parts.device.replays[begin : begin + 40]
        with_decode = [s.generated_tokens > 0 for _, s in replays]
        assert any(s.tokens > s.generated_tokens for _, s in replays)
        if mixed:
            assert all(with_decode)
        else:  # never two prefill launches without a decode launch between them
            assert all(first or second for first, second in pairwise(with_decode))
        for other in others:
            await collect(other)


async def test_no_row_writes_to_the_null_block_when_the_cache_is_full() -> None:
    async with serving(num_blocks=13, block_size=16, max_num_seqs=3, prefix_cache=False) as parts:
        streams = parts.engine.submit([request(str(i), [i + 1] * 30, 34) for i in range(3)])
        answers = await asyncio.gather(*map(collect, streams))
        for i, deltas in enumerate(answers):
            assert ids(deltas) == parts.expected([i + 1] * 30, 34)
        assert min(slot for slot, _ in parts.device.written) >= 16  # never the null block
        assert (
            max(slot for slot, _ in parts.device.written) == 13 * 16 - 2
        )  # the last token is never computed
