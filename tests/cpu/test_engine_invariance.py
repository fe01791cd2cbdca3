"""Row invariance, end to end on native kernels: no scheduling knob changes a bit of an answer."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.client import Engine
from engine.config import EngineConfig
from engine.core.reader import open_core
from engine.factory import load_engine
from engine.types import GenerationRequest, SamplingParams, TokenDelta
from tests.support.cores import CoreSpec, write_core
from tests.support.serving import collect

LENGTHS = (1, 5, 63, 64, 65, 130, 150)
Answer = list[tuple[tuple[int, ...], Any, Any]]


SPECS = {
    "q4p16": CoreSpec(layout="q4p16"),
    "q4p16-bf16": CoreSpec(layout="q4p16", preferred="bf16_g32"),
    "q8p16": CoreSpec(layout="q8p16"),
    "bf16p16": CoreSpec(layout="bf16p16"),
}


@pytest.fixture(scope="module", params=SPECS)
def core(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A core of random weights; answers are as varied as its sampler makes them."""
    spec = replace(SPECS[request.param], max_num_seqs=4, max_step_tokens=32)
    return write_core(tmp_path_factory.mktemp("cores") / "random.core", spec)


@pytest.fixture(scope="module")
def block_bytes(core: Path) -> int:
    with open_core(core) as opened:
        return opened.manifest.model.kv.bytes_per_block


def requests() -> list[GenerationRequest]:
    """Greedy and drawn, long and short; three share a prompt head of two blocks."""
    made = []
    for i, length in enumerate(LENGTHS):
        prompt = tuple((j * 7 + (0 if length >= 64 else i)) % 85 + 3 for j in range(length))
        sampling = SamplingParams(
            max_tokens=40,
            temperature=0.0 if i % 2 else 1.0,
            seed=i,
            presence_penalty=0.5,
            ignore_eos=True,
            logprobs=2,
            prompt_logprobs=1 if i == 3 else None,
        )
        made.append(GenerationRequest(str(i), prompt, sampling))
    return made


def answer(deltas: list[TokenDelta]) -> Answer:
    return [(d.token_ids, d.logprobs, d.prompt_logprobs) for d in deltas]


async def serve(engine: Engine, together: bool, rounds: int = 1) -> list[Answer]:
    """Answers to ``requests()``; with rounds, the last ones (the cache is warm then)."""
    engine.start()
    answers: list[list[TokenDelta]] = []
    for _ in range(rounds):
        if together:
            answers = await asyncio.gather(*map(collect, engine.submit(requests())))
        else:
            answers = [await collect(engine.submit([one])[0]) for one in requests()]
    await engine.close()
    return list(map(answer, answers))


def run(core: Path, together: bool = True, rounds: int = 1, **config: Any) -> list[Answer]:
    settings: dict[str, Any] = {"threads": 1, "prefix_cache": False, **config}
    engine = load_engine(EngineConfig(core=core, **settings))
    answers = asyncio.run(serve(engine, together, rounds))
    count = engine.metrics.registry.get_sample_value
    assert ((count("flare_preemptions_total") or 0) > 0) is ("kv_cache_bytes" in config)
    speculates = "speculative" in config
    assert ((count("flare_speculative_proposed_total") or 0) > 0) is speculates
    assert ((count("flare_prefix_cache_hits_total") or 0) > 0) is settings["prefix_cache"]
    return answers


@pytest.fixture(scope="module")
def alone(core: Path) -> list[Answer]:
    """The answers when each request has the server for itself."""
    return run(core, together=False, mixed_prefill=False)


@pytest.mark.parametrize(
    "config",
    [
        {"mixed_prefill": True},
        {"mixed_prefill": False},
        {"mixed_prefill": True, "max_step_tokens": 9},
        {"mixed_prefill": False, "max_step_tokens": 3},
        {"mixed_prefill": True, "threads": 2},
        {"mixed_prefill": True, "prefix_cache": True, "rounds": 2},
        {"mixed_prefill": False, "prefix_cache": True, "rounds": 2, "max_num_seqs": 2},
        {"mixed_prefill": True, "speculative": "ngram", "draft_tokens": 2},
        {"mixed_prefill": False, "speculative": "ngram", "draft_tokens": 2},
        {"speculative": "ngram", "prefix_cache": True, "rounds": 2, "max_num_seqs": 1},
    ],
    ids=str,
)
def test_an_answer_has_the_same_bits_in_any_company(
    core: Path, alone: list[Answer], config: dict[str, Any]
) -> None:
    assert run(core, **config) == alone


@pytest.mark.parametrize("mixed", [True, False])
def test_an_answer_has_the_same_bits_after_preemptions(
    core: Path, alone: list[Answer], block_bytes: int, mixed: bool
) -> None:
    assert run(core, mixed_prefill=mixed, kv_cache_bytes=5 * block_bytes) == alone


def test_the_answers_differ_from_each_other(alone: list[Answer]) -> None:
    texts = {tuple(token for ids, _, _ in one for token in ids) for one in alone}
    assert len(texts) == len(LENGTHS)
