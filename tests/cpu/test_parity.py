"""The default model against transformers with the dequantised weights, in both roles."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, GgufConfig

from engine.core.reader import Core, open_core
from engine.device.base import capacity_of
from engine.device.cpu.device import CpuDevice
from engine.text.assets import folder_files
from engine.text.tokenizer import Tokenizer
from tests.support.direct import DirectRunner, agreement
from tests.support.english import english, windows_of

pytestmark = pytest.mark.model

PROMPTS = 200
LENGTH = 32
"""Tokens of a prompt. Every position counts: 200 prompts give 6,400 distributions."""
MAX_KL = 2e-3
MIN_TOP1 = 0.98

Logits = dict[int, NDArray[np.float32]]


@pytest.fixture(scope="module")
def core(default_core: Path) -> Core:
    return open_core(default_core)


@pytest.fixture(scope="module")
def prompts(default_core: Path) -> list[list[int]]:
    """Windows of English prose, at places that a fixed seed chose."""
    ids = list(Tokenizer.load(folder_files(default_core / "text")).encode(english()))
    return windows_of(ids, PROMPTS, LENGTH)


@pytest.fixture(scope="module")
def expected(default_gguf: Path, prompts: list[list[int]]) -> Logits:
    """Next-token logits of transformers, float32, dequantised weights."""
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(
        default_gguf.parent,
        gguf_file=default_gguf.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    )
    with torch.inference_mode():
        logits = torch.cat(
            [model(torch.tensor(prompts[i : i + 10])).logits for i in range(0, PROMPTS, 10)]
        )
    return dict(enumerate(logits.numpy()))


@pytest.fixture(scope="module")
def runner(core: Core) -> DirectRunner:
    catalog = core.manifest.catalog
    device = CpuDevice(
        core.manifest.model,
        capacity_of(catalog.graphs),
        {tensor.name: core.tensor(tensor.name) for tensor in catalog.storage},
        workspace_bytes=max(graph.workspace_bytes for graph in catalog.graphs),
        num_blocks=4,
        max_blocks=4,
        sampler_slots=1,
        threads=2,
    )
    return DirectRunner(core, device)


def test_prompt_rows(prompts: list[list[int]], expected: Logits, runner: DirectRunner) -> None:
    found = {i: runner.logits(ids) for i, ids in enumerate(prompts)}
    result = agreement(expected, found)
    assert result.rows == PROMPTS * LENGTH
    assert result.kl <= MAX_KL and result.top1 >= MIN_TOP1, result


def test_generated_rows(prompts: list[list[int]], expected: Logits, runner: DirectRunner) -> None:
    border = 8
    found = {i: runner.logits(ids, border)[border:] for i, ids in enumerate(prompts)}
    result = agreement({i: logits[border:] for i, logits in expected.items()}, found)
    assert result.rows == PROMPTS * (LENGTH - border)
    assert result.kl <= MAX_KL and result.top1 >= MIN_TOP1, result
