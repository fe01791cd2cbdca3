"""The native CPU device against the reference device: same programs, same batches, same draws."""

import flare_cpu
import numpy as np
import pytest
import torch

from engine.device.base import DeviceSampler, SampleBatch, capacity_of
from engine.device.cpu.device import CpuDevice
from engine.device.cpu.sampler import CpuSampler
from engine.device.reference.device import ReferenceDevice
from engine.device.reference.sampler import ReferenceSampler
from engine.kernels.numerics import NumericsClass
from engine.types import SamplingParams
from tests.support.batches import BatchRunner, Part
from tests.support.cores import CoreSpec, catalog, weights

BLOCKS = 12
TOLERANCE = {"bf16p16": (0.012, 0.06), "q8p16": (0.02, 0.12), "q4p16": (0.02, 0.12)}
"""Root mean square and largest difference of logits, which have unit variance: activations are
rounded to bfloat16, 12 or 8 bits on the CPU device, and not at all on the reference device."""


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def runners(spec: CoreSpec) -> tuple[BatchRunner, BatchRunner]:
    stored = weights(spec)
    parts = catalog(spec, stored)
    arrays = {name: weight.array for name, weight in stored.items()}
    capacity = capacity_of(parts.graphs)
    native = CpuDevice(
        spec.model(), capacity, arrays,
        workspace_bytes=max(graph.workspace_bytes for graph in parts.graphs),
        num_blocks=BLOCKS, max_blocks=4, sampler_slots=4, threads=1,
    )  # fmt: skip
    reference = ReferenceDevice(spec.model(), capacity, arrays, BLOCKS, 4, 4)
    return BatchRunner(native, parts), BatchRunner(reference, parts)


@pytest.mark.parametrize("preferred", ["int12_g32", "bf16_g32", "int8_g32"])
@pytest.mark.parametrize("layout", ["bf16p16", "q8p16", "q4p16"])
def test_logits_agree(layout: str, preferred: NumericsClass) -> None:
    spec = CoreSpec(layout=layout, preferred=preferred, prefill=(8, 128), max_step_tokens=128)
    native, reference = runners(spec)
    random = np.random.default_rng(3)
    first, second = (tuple(random.integers(0, spec.vocab_size, 80).tolist()) for _ in range(2))
    steps = [
        ("prefill-128", [Part(first[:70], 0, (3, 9)), Part(second[:20], 0, (5,))]),
        ("mixed-32", [Part(first[70:71], 70, (3, 9), True), Part(second[20:40], 20, (5,))]),
        (
            "decode-4",
            [Part(first[71:72], 71, (3, 9), True), Part(second[40:41], 40, (5,), True)],
        ),
    ]
    for graph, parts in steps:
        found, expected = (runner.run(graph, parts) for runner in (native, reference))
        difference = (found - expected)[:, : spec.vocab_size]
        rms, largest = TOLERANCE[layout]
        assert np.sqrt(np.mean(difference**2)) < rms, graph
        assert np.abs(difference).max() < largest, graph
        # The best id is the reference's, or as good as it within the tolerance.
        logits = expected[:, : spec.vocab_size]
        chosen = np.take_along_axis(logits, found.argmax(1)[:, None], 1)[:, 0]
        assert (chosen > logits.max(1) - 2 * largest).all(), graph


CASES = {
    "greedy": SamplingParams(10, temperature=0.0),
    "plain": SamplingParams(10, seed=1),
    "cold": SamplingParams(10, temperature=0.3, seed=2),
    "top_k": SamplingParams(10, top_k=5, seed=3),
    "top_p": SamplingParams(10, top_p=0.7, seed=4),
    "min_p": SamplingParams(10, min_p=0.1, seed=5),
    "all": SamplingParams(10, temperature=0.8, top_k=20, top_p=0.9, min_p=0.02, seed=6),
    "penalties": SamplingParams(
        10, seed=2**64 - 1, presence_penalty=0.5, frequency_penalty=0.3, repetition_penalty=1.2
    ),
    "bias": SamplingParams(10, seed=8, logit_bias={3: 4.0, 10: -100.0}),
}


@pytest.mark.parametrize("name", CASES)
def test_draws_agree(name: str) -> None:
    """Both samplers draw the same tokens from the same logits, step after step."""
    vocab, width, steps = 300, 304, 60
    random = np.random.default_rng(9)
    rows = random.standard_normal((steps, width)).astype(np.float32) * 2
    current = rows[:1]
    native = CpuSampler(flare_cpu.ThreadPool(1), "portable", vocab, width, 2, lambda: current)
    reference = ReferenceSampler(vocab, 2, lambda: current)
    samplers: tuple[DeviceSampler, DeviceSampler] = (native, reference)
    for sampler in samplers:
        sampler.set(1, CASES[name], [5], [7, 8, 8], [])
    tokens: list[tuple[int, int]] = []
    for step in range(steps):
        current = rows[step : step + 1]
        one = np.ones(1, np.int32)
        batch = SampleBatch(0 * one, one, step * one, np.array([step < 5], np.uint8), 4 * one)
        left, right = (sampler.sample(batch) for sampler in samplers)
        tokens.append((int(left.tokens[0]), int(right.tokens[0])))
        np.testing.assert_allclose(left.logprobs, right.logprobs, atol=1e-4)
        assert left.top_ids[0, :4].tolist() == right.top_ids[0, :4].tolist()
        np.testing.assert_allclose(left.top_logprobs[0, :4], right.top_logprobs[0, :4], atol=1e-4)
    assert all(left == right for left, right in tokens)
    assert len({left for left, _ in tokens}) > 5
