"""Speculation through the real engine on the scripted device: the same answers, in fewer steps."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from engine.types import FinishReason, GenerationRequest, GrammarSpec, TokenDelta
from tests.support.api import behaviour as byte_behaviour
from tests.support.grammars import compiler
from tests.support.scripted import Behaviour, ScriptedEngine
from tests.support.serving import collect, ids, request, serving

WORDS = [11, 12, 13, 14, 15]
LOOP = Behaviour(scripts={(5,): WORDS * 40, (6,): list(range(20, 220))})
Answer = list[tuple[tuple[int, ...], Any, FinishReason | None]]


def counted(parts: ScriptedEngine, name: str) -> float:
    return parts.engine.metrics.registry.get_sample_value(f"flare_{name}_total") or 0.0


def answer(deltas: Sequence[TokenDelta]) -> Answer:
    return [(delta.token_ids, delta.logprobs, delta.finish_reason) for delta in deltas]


async def answers(
    requests: Sequence[GenerationRequest],
    behaviour: Behaviour | None = LOOP,
    **options: Any,
) -> tuple[list[Answer], ScriptedEngine]:
    async with serving(behaviour, **options) as parts:
        found = await asyncio.gather(*map(collect, parts.engine.submit(requests)))
        return list(map(answer, found)), parts


async def same(
    requests: Sequence[GenerationRequest], behaviour: Behaviour | None = LOOP, **options: Any
) -> ScriptedEngine:
    """Check that answers are equal with speculation off and on; return the engine with it on."""
    off, plain = await answers(requests, behaviour, **options)
    on, parts = await answers(requests, behaviour, **options, draft_tokens=3)
    assert on == off
    assert counted(plain, "speculative_proposed") == 0
    assert counted(parts, "generation_tokens") == sum(len(i) for one in on for i, _, _ in one)
    return parts


async def test_a_text_that_repeats_takes_fewer_steps() -> None:
    parts = await same([request("a", [5], 100)])
    accepted = counted(parts, "speculative_accepted")
    assert accepted > 60
    assert accepted <= counted(parts, "speculative_proposed")
    assert len(parts.device.replays) == 100 - accepted


async def test_a_text_without_repetition_is_not_drafted() -> None:
    parts = await same([request("a", [6], 100)])
    assert counted(parts, "speculative_proposed") == 0


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 1.0, "seed": 3, "top_k": 2},
        {"frequency_penalty": 0.6},
        {"presence_penalty": 0.3, "repetition_penalty": 1.05, "temperature": 0.2},
        {"logit_bias": {12: 5.0, 13: -1.0}},
        {"stop_token_ids": frozenset({14})},
        {"stop_token_ids": frozenset({14}), "min_tokens": 37},
        {"logprobs": 3},
    ],
    ids=str,
)
async def test_sampling_finds_the_same_tokens(sampling: dict[str, Any]) -> None:
    asked = [request(str(i), [5], 90, **{"logprobs": 1, **sampling}) for i in range(2)]
    asked.append(request("long prompt", [5, *WORDS * 4, 11, 12], 60, **sampling))
    parts = await same(asked, max_num_seqs=16)
    assert counted(parts, "speculative_proposed") > 0


@pytest.mark.parametrize("drafts", [1, 3])
@pytest.mark.parametrize("left", [1, 2, 3, 4, 5])
async def test_no_position_beyond_the_length_limit_is_used(drafts: int, left: int) -> None:
    length = 64
    prompt = [5, *(WORDS * 20)[: length - left - 1]]
    for options in ({}, {"draft_tokens": drafts}):
        async with serving(LOOP, max_model_len=length, num_blocks=5, **options) as parts:
            [deltas] = [await collect(s) for s in parts.engine.submit([request("a", prompt, left)])]
            assert ids(deltas) == parts.expected(prompt, left)
            assert deltas[-1].finish_reason is FinishReason.LENGTH
            assert max(position for _, position in parts.device.written) < length - 1


@pytest.mark.parametrize("mixed", [True, False])
async def test_a_batch_with_preemptions_gets_the_same_texts(mixed: bool) -> None:
    prompts = [[5], [6], [5, 11, 12], [5, *WORDS * 3], [40, 41, 40, 41, 40, 41]]
    asked = [request(str(i), p, 70, logprobs=1) for i, p in enumerate(prompts)]
    parts = await same(asked, mixed=mixed, max_num_seqs=8, num_blocks=14, block_size=8)
    assert counted(parts, "preemptions") > 0
    assert counted(parts, "speculative_accepted") > 0


async def test_rows_of_a_step_stay_within_the_limit() -> None:
    asked = [request(str(i), [5], 60) for i in range(12)]
    parts = await same(asked, max_num_seqs=12, max_step_tokens=64)
    shapes = [shape for graph, shape in parts.device.replays if graph.startswith("decode")]
    assert max(shape.tokens for shape in shapes) == 12
    assert counted(parts, "speculative_accepted") == 0  # all rows are taken
    asked = [request(str(i), [5], 60) for i in range(6)]
    parts = await same(asked, max_num_seqs=32, max_step_tokens=64)
    shapes = [shape for graph, shape in parts.device.replays if graph.startswith("decode")]
    assert max(shape.tokens for shape in shapes) == 16
    assert counted(parts, "speculative_accepted") > 0
    parts = await same([request("a", [5], 60)], max_num_seqs=8, max_step_tokens=3)
    shapes = [shape for graph, shape in parts.device.replays if graph.startswith("decode")]
    assert max(shape.tokens for shape in shapes) == 3
    assert counted(parts, "speculative_accepted") > 0


async def test_sequences_with_a_grammar_run_beside_drafts() -> None:
    spec = GrammarSpec("regex", "(ab){20,30}c")
    plain = request("grammar", [7], 60, grammar=spec)
    constrained = replace(plain, grammar=await compiler().compile(spec))
    said = byte_behaviour(scripts={(9,): WORDS * 30})
    parts = await same([constrained, request("free", [9], 90)], said, max_num_seqs=8)
    assert counted(parts, "speculative_accepted") > 0
    alone = await same([constrained], said, max_num_seqs=8)
    assert counted(alone, "speculative_proposed") == 0


async def test_an_end_token_inside_a_draft_ends_the_text() -> None:
    said = Behaviour(scripts={(5, 11, 12, 0, 13, 11): [12, 0, 13, 11]})
    parts = await same([request("a", [5, 11, 12, 0, 13, 11], 20)], said)
    assert counted(parts, "generation_tokens") == 2


async def test_an_output_that_is_not_finite_fails_alone() -> None:
    said = Behaviour(scripts={(5,): WORDS * 40}, nan_prompts=frozenset({(5, *WORDS * 4)}))
    async with serving(said, draft_tokens=3) as parts:
        bad, good = parts.engine.submit([request("bad", [5], 60), request("good", [6, 7], 30)])
        failed, fine = await collect(bad), await collect(good)
        assert ids(failed) == (WORDS * 4)[: len(ids(failed))] and len(ids(failed)) == 20
        assert failed[-1].finish_reason is FinishReason.ERROR
        assert ids(fine) == parts.expected([6, 7], 30)


async def test_sequences_that_leave_amid_drafts_leave_nothing_behind() -> None:
    async with serving(LOOP, draft_tokens=3, max_num_seqs=8) as parts:
        streams = parts.engine.submit([request(str(i), [5], 200) for i in range(4)])
        for stream in streams[:3]:
            await anext(stream)
            await anext(stream)
            await stream.aclose()
        assert ids(await collect(streams[3])) == (WORDS * 40)[:200]
