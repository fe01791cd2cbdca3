"""The rotary table against the Llama reference in transformers."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from engine.export.checkpoint.base import RopeSpec
from engine.export.rope import inverse_frequencies, rope_table
from tests.support.checkpoints import tiny_config

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
CASES = [
    (RopeSpec(10000.0), {"rope_type": "default", "rope_theta": 10000.0}),
    (RopeSpec(100000.0), {"rope_type": "default", "rope_theta": 100000.0}),
    (RopeSpec(9e4, "linear", 3.0), {"rope_type": "linear", "rope_theta": 9e4, "factor": 3.0}),
    (
        RopeSpec(5e5, "llama3", 8.0, 1.0, 4.0, 8192),
        {
            "rope_type": "llama3",
            "rope_theta": 5e5,
            "original_max_position_embeddings": 8192,
            **LLAMA3,
        },
    ),
]


@pytest.mark.parametrize("head_dim", [16, 64, 128])
@pytest.mark.parametrize(("spec", "parameters"), CASES)
def test_the_table_is_the_reference(
    spec: RopeSpec, parameters: dict[str, Any], head_dim: int
) -> None:
    positions = 4096
    config = tiny_config(
        head_dim=head_dim, rope_parameters=parameters, max_position_embeddings=1 << 17
    )
    rotary = LlamaRotaryEmbedding(config)
    expected = rotary.inv_freq.numpy()
    found = inverse_frequencies(spec, head_dim)
    # torch's float32 power is off by one unit in the last place now and then; a table entry then
    # differs by that relative error times the angle.
    np.testing.assert_allclose(found, expected, rtol=2.5e-7, atol=0)
    cos, sin = rotary(torch.zeros(1), torch.arange(positions)[None])
    half = head_dim // 2
    same = found == expected
    assert same.mean() > 0.9
    table = rope_table(spec, head_dim, positions)
    assert table.dtype == np.float32 and table.shape == (positions, head_dim)
    for values, reference in ((table[:, :half], cos), (table[:, half:], sin)):
        reference_half = reference[0, :, :half].numpy()
        np.testing.assert_allclose(values[:, same], reference_half[:, same], rtol=0, atol=1.2e-7)


def test_factors_divide_the_frequencies() -> None:
    spec = RopeSpec(10000.0, factors=(1.0, 2.0, 4.0, 8.0))
    plain = inverse_frequencies(RopeSpec(10000.0), 8)
    assert np.array_equal(inverse_frequencies(spec, 8), plain / np.array([1, 2, 4, 8], np.float32))
