"""The reference device against transformers, and against itself in other batches."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import LlamaConfig, LlamaForCausalLM

from engine.device.base import BatchShape, capacity_of
from engine.device.reference.device import ReferenceDevice
from engine.kernels.layouts import PANEL, dequantise
from tests.support.batches import BatchRunner, Part
from tests.support.cores import CoreSpec, Weight, catalog, weights

BLOCKS = 12


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


class Runner(BatchRunner):
    """A reference device with all graphs of a synthetic core."""

    def __init__(self, spec: CoreSpec) -> None:
        self.spec = spec
        self.stored = weights(spec)
        parts = catalog(spec, self.stored)
        arrays = {name: weight.array for name, weight in self.stored.items()}
        capacity = capacity_of(parts.graphs)
        super().__init__(ReferenceDevice(spec.model(), capacity, arrays, BLOCKS, 4, 2), parts)


def dense(weight: Weight, layout: str) -> torch.Tensor:
    return torch.from_numpy(dequantise(layout, weight.array.view(np.uint8), weight.n, weight.k))


def oracle(spec: CoreSpec, stored: dict[str, Weight], tokens: list[int]) -> NDArray[np.float32]:
    """Return transformers' logits of all positions for the same weights."""
    config = LlamaConfig(
        vocab_size=spec.vocab_size, hidden_size=spec.hidden, intermediate_size=spec.intermediate,
        num_hidden_layers=spec.layers, num_attention_heads=spec.heads,
        num_key_value_heads=spec.kv_heads, head_dim=spec.head_dim, rms_norm_eps=1e-5,
        rope_theta=10000.0, tie_word_embeddings=True, max_position_embeddings=spec.max_model_len,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    state = {"model.embed_tokens.weight": dense(stored["embed"], spec.layout)}
    state["model.norm.weight"] = torch.from_numpy(stored["norm"].array)
    q, kv = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    for i in range(spec.layers):
        here, there = f"layers.{i}.", f"model.layers.{i}."
        qkv = dense(stored[f"{here}qkv"], spec.layout).split((q, kv, kv))
        for name, part in zip("qkv", qkv, strict=True):
            state[f"{there}self_attn.{name}_proj.weight"] = part
        state[f"{there}self_attn.o_proj.weight"] = dense(stored[f"{here}o"], spec.layout)
        panels = dense(stored[f"{here}gate_up"], spec.layout).reshape(-1, 2, PANEL, spec.hidden)
        for j, name in enumerate(("gate", "up")):
            state[f"{there}mlp.{name}_proj.weight"] = panels[:, j].reshape(-1, spec.hidden)
        state[f"{there}mlp.down_proj.weight"] = dense(stored[f"{here}down"], spec.layout)
        state[f"{there}input_layernorm.weight"] = torch.from_numpy(stored[f"{here}norm1"].array)
        state[f"{there}post_attention_layernorm.weight"] = torch.from_numpy(
            stored[f"{here}norm2"].array
        )
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert missing == ["lm_head.weight"]
    assert not unexpected
    model.tie_weights()
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0].numpy()


@pytest.mark.parametrize("layout", ["bf16p16", "q8p16", "q4p16"])
def test_logits_agree_with_transformers(layout: str) -> None:
    spec = CoreSpec(layout=layout, prefill=(8, 128), max_step_tokens=128)
    runner = Runner(spec)
    tokens = np.random.default_rng(1).integers(0, spec.vocab_size, 90).tolist()
    logits = runner.run("prefill-128", [Part(tuple(tokens), 0, (7, 3))])
    expected = oracle(spec, runner.stored, tokens)
    assert logits.shape == (90, spec.logits_width)
    # Keys and values are rounded to bfloat16 in the cache: 8 bits of them remain.
    np.testing.assert_allclose(logits[:, : spec.vocab_size], expected, atol=0.03)
    assert np.corrcoef(logits[:, : spec.vocab_size].ravel(), expected.ravel())[0, 1] > 0.9999


def test_chunks_and_neighbours_change_nothing_beyond_rounding() -> None:
    spec = CoreSpec()
    runner = Runner(spec)
    random = np.random.default_rng(2)
    a, b = (tuple(random.integers(0, spec.vocab_size, 20).tolist()) for _ in range(2))
    whole = runner.run("prefill-32", [Part(a, 0, (5,))])
    first = runner.run("prefill-32", [Part(b[:9], 0, (1,)), Part(a[:8], 0, (4,))])
    rest = runner.run("mixed-32", [Part(b[9:10], 9, (1,)), Part(a[8:], 8, (4,))])
    chunked = np.concatenate([first[9:], rest[1:]])
    np.testing.assert_allclose(chunked, whole, atol=1e-4)
    alone = runner.run("prefill-32", [Part(b[:10], 0, (2,))])
    np.testing.assert_allclose(rest[0], alone[9], atol=1e-4)


def test_rows_that_a_graph_has_beyond_those_present_write_nowhere() -> None:
    runner = Runner(CoreSpec())
    blocks = (1, 3, 5)
    for block in (*blocks, BLOCKS - 1):
        runner.run("prefill-32", [Part(tuple(range(10, 30)), 0, (block,))])
    assert isinstance(runner.device, ReferenceDevice)
    cache = runner.device._state.cache.view(2, BLOCKS, -1)
    before = cache.clone()
    runner.spoil_inputs()
    runner.run("decode-4", [Part((9,), 20, (block,), True) for block in blocks])
    changed = (cache != before).any(dim=2).any(dim=0)
    assert changed.nonzero().flatten().tolist() == list(blocks)


def test_a_batch_beyond_the_capacity_is_refused() -> None:
    runner = Runner(CoreSpec())
    with pytest.raises(ValueError, match="tokens: 5 present"):
        runner.executables["decode-4"].replay(BatchShape(5, 4, 4, 5, 4, 4))
    with pytest.raises(ValueError, match="seqs: 1 present, 2 generated"):
        runner.executables["decode-4"].replay(BatchShape(1, 1, 1, 1, 2, 1))


def test_scrubbing_zeroes_blocks_in_all_layers() -> None:
    runner = Runner(CoreSpec())
    runner.run("prefill-32", [Part(tuple(range(10, 30)), 0, (1,))])
    runner.run("prefill-32", [Part(tuple(range(10, 30)), 0, (3,))])
    assert isinstance(runner.device, ReferenceDevice)
    cache = runner.device._state.cache.view(2, BLOCKS, -1)
    assert cache[:, [1, 3]].any(dim=2).all()
    runner.device.scrub([3])
    assert cache[:, 1].any(dim=1).all() and not cache[:, 3].any()
