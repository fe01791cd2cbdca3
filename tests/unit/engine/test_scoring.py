"""Prompt log probabilities, and requests that want no token."""

import asyncio

import numpy as np
import pytest

from engine.types import FinishReason, TokenDelta
from tests.support.scripted import ScriptedEngine, scripted_engine
from tests.support.serving import collect, ids, request, serving

PROMPT = [(11 * i) % 200 + 1 for i in range(7 * 16 + 5)]


def oracle(parts: ScriptedEngine, prompt: list[int]) -> list[float]:
    """Log probability of each prompt token but the first, straight from the device's rule."""
    found = []
    for i in range(1, len(prompt)):
        logits = parts.device._logits_after(prompt[:i], [0] * i)
        logits = logits[: parts.device.behaviour.vocab_size].astype(np.float64)
        found.append(logits[prompt[i]] - np.log(np.exp(logits).sum()))
    return found


def scores(deltas: list[TokenDelta]) -> list[float]:
    entries = deltas[0].prompt_logprobs
    assert entries is not None
    assert entries[0] is None
    return [entry.logprob for entry in entries[1:] if entry is not None]


@pytest.mark.parametrize("mixed", [True, False])
async def test_every_prompt_token_is_scored_also_when_the_prefix_is_cached(mixed: bool) -> None:
    async with serving(mixed=mixed) as parts:
        [warm] = parts.engine.submit([request("warm", PROMPT, 2)])
        await collect(warm)
        expected = oracle(parts, PROMPT)
        for name in ("one", "two"):
            batch = [
                request(name, PROMPT, 3, prompt_logprobs=2),
                request(name + "mate", PROMPT[:112] + [9] * 20, 3),
            ]
            answer, _ = await asyncio.gather(*map(collect, parts.engine.submit(batch)))
            assert scores(answer) == pytest.approx(expected, abs=1e-4)
            assert answer[0].cached_tokens == 0
            entries = answer[0].prompt_logprobs
            assert entries is not None
            assert [e.token_id for e in entries if e is not None] == PROMPT[1:]
            assert all(len(e.top) == 2 for e in entries if e is not None)
            assert all(d.prompt_logprobs is None for d in answer[1:])
            assert ids(answer) == parts.expected(PROMPT, 3)


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 40])
async def test_scoring_without_a_completion(length: int) -> None:
    async with serving() as parts:
        [stream] = parts.engine.submit([request("a", PROMPT[:length], 0, prompt_logprobs=0)])
        deltas = await collect(stream)
        assert [(d.token_ids, d.finish_reason) for d in deltas] == [((), FinishReason.LENGTH)]
        assert scores(deltas) == pytest.approx(oracle(parts, PROMPT[:length]), abs=1e-4)


async def test_no_tokens_and_no_scores_ends_at_once() -> None:
    async with serving() as parts:
        [stream] = parts.engine.submit([request("a", PROMPT, 0)])
        deltas = await collect(stream)
        assert [(d.token_ids, d.finish_reason) for d in deltas] == [((), FinishReason.LENGTH)]
        assert not parts.device.replays


async def test_scores_start_over_when_a_prompt_is_preempted_half_way() -> None:
    prompt = PROMPT[:56]
    async with serving(
        num_blocks=12, block_size=8, max_num_seqs=2, max_step_tokens=4, prefix_cache=False
    ) as parts:
        first, second = parts.engine.submit(
            [request("a", [3] * 16, 20), request("b", prompt, 5, prompt_logprobs=1)]
        )
        deltas, _ = await asyncio.gather(collect(second), collect(first))
        registry = parts.engine.metrics.registry
        assert registry.get_sample_value("flare_preemptions_total") == 1
        assert scores(deltas) == pytest.approx(oracle(parts, prompt), abs=1e-4)
        assert ids(deltas) == parts.expected(prompt, 5)


async def test_logprobs_name_the_chosen_token_and_its_alternatives() -> None:
    async with serving() as parts:
        [stream] = parts.engine.submit([request("a", PROMPT[:9], 4, logprobs=5)])
        [plain] = parts.engine.submit([request("b", PROMPT[:9], 4)])
        deltas = await collect(stream)
        assert all(not d.logprobs for d in await collect(plain))
        for delta in deltas:
            [entry] = delta.logprobs
            assert entry.token_id == delta.token_ids[0]
            assert len(entry.top) == 5
            assert entry.top[0] == (entry.token_id, entry.logprob)
            values = [value for _, value in entry.top]
            assert values == sorted(values, reverse=True)


def test_the_oracle_sees_the_device() -> None:
    parts = scripted_engine()
    assert len(oracle(parts, [1, 2, 3])) == 2
