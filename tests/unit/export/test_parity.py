"""Exported programs on the reference device against transformers, in every kind of launch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import DynamicCache, LlamaForCausalLM

from engine.export import formats
from engine.export.pipeline import export_core
from engine.export.quantize import quantize_eight_bit, quantize_four_bit
from engine.export.settings import ExportConfig
from tests.support.batches import Part, reference_runner
from tests.support.checkpoints import complete_gguf, complete_hf

torch.set_num_threads(1)
TYPES = gguf.GGMLQuantizationType
WANTED = 24
"""Logits rows that are compared per segment, at most."""
BLOCKS = ((7, 2, 5), (0, 8, 3))
"""Blocks of the two sequences."""
LINEARS = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


class RoundedCache(DynamicCache):
    """Keys and values rounded to bfloat16, as Flare's cache stores them."""

    def update(self, key_states: Any, value_states: Any, *rest: Any, **more: Any) -> Any:
        rounded = [states.bfloat16().float() for states in (key_states, value_states)]
        return super().update(*rounded, *rest, **more)


def expected_logits(model: LlamaForCausalLM, tokens: list[int]) -> NDArray[np.float32]:
    with torch.inference_mode():
        output = model(torch.tensor([tokens]), cache=RoundedCache(config=model.config))
    return output.logits[0].float().numpy()  # type: ignore[no-any-return]


def check_every_kind(path: Path, model: LlamaForCausalLM) -> None:
    """Two sequences: whole and chunked prompts, a mixed launch, then decode of both."""
    rng = np.random.default_rng(1)
    a, b = (rng.integers(0, 600, size).tolist() for size in (70, 80))
    want_a, want_b = expected_logits(model, a), expected_logits(model, b)
    runner, sizes = reference_runner(path)
    tokens, want = (a, b), (want_a, want_b)

    def check(graph: str, *rows: tuple[int, int, int], generated: int = 0) -> None:
        """Run rows (sequence, start, stop), the first ``generated`` of them in that role."""
        parts = [
            Part(tuple(tokens[s][start:stop]), start, BLOCKS[s], i < generated, WANTED)
            for i, (s, start, stop) in enumerate(rows)
        ]
        found = runner.run(graph, parts)
        assert not found[:, sizes.vocab_size :].any()
        expected = [want[s][start:stop][-WANTED:] for s, start, stop in rows]
        close(found[:, : sizes.vocab_size], np.concatenate(expected))

    check("prefill-128", (0, 0, 60), (1, 0, 50))
    check("prefill-32", (1, 50, 66))
    check("mixed-64", (0, 60, 61), (1, 66, 79), generated=1)
    check("decode-2", (0, 61, 62), (1, 79, 80), generated=2)
    for position in range(62, 70):
        check("decode-1", (0, position, position + 1), generated=1)


def close(found: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    """Equal but for float32 rounding, and for cache entries that it tips over to a neighbour."""
    assert found.shape == expected.shape
    scale = np.abs(expected).max(axis=-1, keepdims=True)
    assert (np.abs(found - expected) / scale).max() < 4e-3
    assert np.abs(found - expected).mean() / scale.mean() < 4e-4


def export(source: Path, output: Path, **options: Any) -> Path:
    config = ExportConfig(str(source), output, max_num_seqs=8, max_step_tokens=128, **options)
    return export_core(config)


LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
MODELS: Mapping[str, dict[str, Any]] = {
    "grouped": {},
    "biased": {"attention_bias": True},
    "tied": {"tie_word_embeddings": True},
    "sharded": {"shard_bytes": 60_000},
    "every head": {"num_key_value_heads": 4},
    "one kv head": {"num_key_value_heads": 1, "head_dim": 24},
    "odd sizes": {"hidden_size": 36, "num_attention_heads": 3, "num_key_value_heads": 1,
                  "head_dim": 10, "intermediate_size": 50, "rms_norm_eps": 1e-6},
    "bf16": {"dtype": "bf16"},
    "fp16": {"dtype": "fp16"},
    "linear rope": {"rope_parameters": {"rope_type": "linear", "rope_theta": 9e3, "factor": 4.0}},
    "llama3 rope": {"rope_parameters": LLAMA3},
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_a_directory_computes_what_transformers_does(name: str, tmp_path: Path) -> None:
    model = complete_hf(tmp_path / "model", **MODELS[name])
    state = model.state_dict()
    for key, value in state.items():
        if value.ndim == 2:  # stored as bfloat16; vectors keep float32
            state[key] = value.bfloat16().float()
    exact = LlamaForCausalLM(model.config).float().eval()
    exact.load_state_dict(state)
    check_every_kind(export(tmp_path / "model", tmp_path / "out.core"), exact)


@pytest.mark.parametrize("quantization", ["keep", "none"])
@pytest.mark.parametrize("kind", [TYPES.Q4_0, TYPES.Q4_1, TYPES.Q8_0])
def test_a_gguf_file_computes_what_its_original_does(
    kind: TYPES, quantization: str, tmp_path: Path
) -> None:
    """The original with the values that quantisation leaves, rows in its own order."""
    types = {f"{name}.weight": kind for name in LINEARS} | {"token_embd.weight": TYPES.Q8_0}
    model = complete_gguf(tmp_path / "m.gguf", types, tie_word_embeddings=True, attention_bias=True)
    for key, parameter in model.named_parameters():
        value = parameter.data
        if value.ndim == 2:
            stored = TYPES.Q8_0 if "embed" in key or "lm_head" in key else kind
            values = gguf.dequantize(gguf.quantize(value.numpy(), stored), stored)
            kept = torch.from_numpy(values.copy())
            value.copy_(kept.bfloat16().float() if quantization == "none" else kept)
    path = export(tmp_path / "m.gguf", tmp_path / "out.core", quantization=quantization)
    check_every_kind(path, model)


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_quantised_directories_compute_with_the_quantised_values(
    quantization: str, tmp_path: Path
) -> None:
    model = complete_hf(tmp_path / "model")
    path = export(tmp_path / "model", tmp_path / "out.core", quantization=quantization)
    for key, value in model.state_dict().items():
        if value.ndim == 2:
            lookup = "embed" in key or "lm_head" in key
            values = value.numpy()
            if quantization == "int8" or lookup:
                eight = quantize_eight_bit(key, values)
                kept = formats.expand(eight.codes.astype(np.float32), eight.scales)
            else:
                four = quantize_four_bit(key, values)
                kept = formats.expand(four.codes.astype(np.float32), four.scales, four.minima)
            assert 0 < np.abs(kept - values).max() < np.abs(values).max() / 5
            value.copy_(torch.from_numpy(kept))
    check_every_kind(path, model)
