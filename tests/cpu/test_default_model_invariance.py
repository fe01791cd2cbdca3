"""Row invariance on the default model: the bits of an answer alone, and in every other setting.

Log probabilities stand for the logits: each holds the log of the sum over the whole row, and twenty
rows' entries come with every token.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from flare_cpu import features
from msgspec.structs import replace

from engine.client import Engine
from engine.config import EngineConfig
from engine.factory import load_engine
from engine.types import GenerationRequest, SamplingParams, TokenDelta
from tests.support.serving import collect

pytestmark = pytest.mark.model

BLOCK = 64
BLOCK_BYTES = 1_474_560
LENGTHS = (BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 300)
"""Prompt lengths of the watched requests: around one block, two blocks, several chunks."""
COMPANY = 32
Answer = list[tuple[tuple[int, ...], Any, int]]
ISAS = [
    "portable",
    *(isa for isa in ("avx2", "avx512", "amx", "neon") if features().get(isa, False)),
]


def prompt(seed: int, length: int) -> tuple[int, ...]:
    """Ordinary token ids (17 and up are no control tokens), different for each seed."""
    return tuple(17 + (seed * 7919 + i * 104_729 + i * i * seed) % 40_000 for i in range(length))


def watched(index: int, tokens: int = 12) -> GenerationRequest:
    """Greedy and drawn by turns, every alternative asked for."""
    sampling = SamplingParams(
        max_tokens=tokens,
        temperature=0.0 if index % 2 else 0.9,
        seed=index,
        ignore_eos=True,
        logprobs=20,
    )
    return GenerationRequest(f"w{index}", prompt(index + 1, LENGTHS[index]), sampling)


def company(count: int) -> list[GenerationRequest]:
    """Others of all lengths, some shorter lived, some longer."""
    return [
        GenerationRequest(
            f"c{i}",
            prompt(1000 + i, 3 + 17 * i % 190),
            SamplingParams(max_tokens=4 + i % 20, temperature=0.7, seed=i, ignore_eos=True),
        )
        for i in range(count)
    ]


def answers_of(deltas: list[TokenDelta]) -> Answer:
    return [(d.token_ids, d.logprobs, len(d.logprobs)) for d in deltas]


async def _serve(
    engine: Engine, batches: list[list[GenerationRequest]]
) -> list[list[list[TokenDelta]]]:
    engine.start()
    results = [list(await asyncio.gather(*map(collect, engine.submit(batch)))) for batch in batches]
    await engine.close()
    return results


def serve(
    core: Path, batches: list[list[GenerationRequest]], **config: Any
) -> tuple[list[list[list[TokenDelta]]], Engine]:
    """Serve batches one after the other; each batch's deltas per request."""
    settings = {"threads": 2, "prefix_cache": False, "kv_cache_bytes": 400 * BLOCK_BYTES, **config}
    engine = load_engine(EngineConfig(core=core, **settings))
    return asyncio.run(_serve(engine, batches)), engine


def metric(engine: Engine, name: str) -> float:
    return engine.metrics.registry.get_sample_value(name) or 0.0


@pytest.fixture(scope="module")
def alone(default_core: Path) -> dict[str, Answer]:
    """The watched requests, each with the server to itself."""
    found, _ = serve(default_core, [[watched(i)] for i in range(len(LENGTHS))])
    return {f"w{i}": answers_of(batch[0]) for i, batch in enumerate(found)}


@pytest.mark.parametrize(
    "config",
    [
        {"mixed_prefill": True},
        {"mixed_prefill": False},
        {"mixed_prefill": True, "threads": 1},
        {"mixed_prefill": True, "max_step_tokens": 64},
        {"mixed_prefill": False, "max_step_tokens": 64, "threads": 1},
    ],
    ids=str,
)
def test_alone_and_among_31_others(
    default_core: Path, alone: dict[str, Answer], config: dict[str, Any]
) -> None:
    mates = company(COMPANY - len(LENGTHS))
    batch = [*mates[:10], *(watched(i) for i in range(len(LENGTHS))), *mates[10:]]
    (found,), engine = serve(default_core, [batch], **config)
    for request, deltas in zip(batch, found, strict=True):
        if request.id in alone:
            assert answers_of(deltas) == alone[request.id], request.id
    launches = "flare_graph_launches_total"
    mixed = sum(
        metric_of.value
        for family in engine.metrics.registry.collect()
        for metric_of in family.samples
        if metric_of.name == launches and metric_of.labels["kind"] == "mixed"
    )
    assert (mixed > 0) is config["mixed_prefill"]


@pytest.mark.parametrize("step_tokens", [16, 48, 100, 512])
def test_any_chunk_size(default_core: Path, alone: dict[str, Answer], step_tokens: int) -> None:
    config = {"max_step_tokens": step_tokens, "mixed_prefill": False}
    found, _ = serve(default_core, [[watched(4)]], **config)
    assert answers_of(found[0][0]) == alone["w4"]


def test_cold_and_warm_prefix_cache(default_core: Path, alone: dict[str, Answer]) -> None:
    requests = [[watched(i)] for i in range(len(LENGTHS))]
    found, _ = serve(default_core, [*requests, *requests], prefix_cache=True)
    for i, batch in enumerate(found):
        index = i % len(LENGTHS)
        assert answers_of(batch[0]) == alone[f"w{index}"]
        hit = (LENGTHS[index] - 1) // BLOCK * BLOCK if i >= len(LENGTHS) else 0
        assert batch[0][0].cached_tokens == hit


@pytest.mark.parametrize("mixed", [True, False])
def test_preempted_and_resumed(default_core: Path, mixed: bool) -> None:
    """A pool that cannot hold both sequences to their ends: one starts over, and more than once."""
    pair = [replace(watched(i, 90), id=f"p{i}") for i in (1, 3)]
    settings = {"mixed_prefill": mixed, "max_model_len": 4 * BLOCK}
    expected, _ = serve(default_core, [[one] for one in pair], **settings)
    (found,), engine = serve(default_core, [pair], kv_cache_bytes=5 * BLOCK_BYTES, **settings)
    assert metric(engine, "flare_preemptions_total") > 0
    for single, deltas in zip(expected, found, strict=True):
        assert answers_of(deltas) == answers_of(single[0])


@pytest.mark.parametrize("isa", ISAS)
def test_every_instruction_set_computes_the_same_bits(
    default_core: Path, alone: dict[str, Answer], isa: str
) -> None:
    """A request in company on a forced path: equal to the best path's answer alone."""
    mate = GenerationRequest("mate", prompt(9, 7), SamplingParams(max_tokens=3, ignore_eos=True))
    (found,), _ = serve(default_core, [[watched(0, 3), mate]], cpu_isa=isa)
    assert answers_of(found[0]) == alone["w0"][:3]
