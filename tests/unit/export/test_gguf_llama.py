"""Llama GGUF files: row order of q and k, refused features, missing and unexpected tensors."""

from pathlib import Path

import gguf
import numpy as np
import pytest

from engine.errors import CheckpointError
from engine.export import formats
from engine.export.checkpoint.gguf_llama import open_gguf
from tests.support.checkpoints import gguf_tensors, save_gguf, tiny_model

Q4_1 = gguf.GGMLQuantizationType.Q4_1


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_q_and_k_rows_come_back_in_the_original_order(kv_heads: int, tmp_path: Path) -> None:
    model = tiny_model(num_key_value_heads=kv_heads, attention_bias=True)
    checkpoint = open_gguf(save_gguf(model, tmp_path / "m.gguf"))
    state = model.state_dict()
    assert checkpoint.model.attention_bias and checkpoint.model.output_bias
    for part in ("q", "k", "v", "o"):
        for kind, suffix in (("weight", ""), ("bias", "_bias")):
            expected = state[f"model.layers.1.self_attn.{part}_proj.{kind}"].numpy()
            found = formats.float32(checkpoint.tensor(f"layers.1.{part}{suffix}"))
            assert np.array_equal(found, expected), (part, kind)


def test_quantised_rows_are_reordered_whole(tmp_path: Path) -> None:
    model = tiny_model()
    checkpoint = open_gguf(save_gguf(model, tmp_path / "m.gguf", {"attn_q.weight": Q4_1}))
    original = model.state_dict()["model.layers.0.self_attn.q_proj.weight"].numpy()
    expected = gguf.dequantize(gguf.quantize(original, Q4_1), Q4_1)
    assert checkpoint.dtype("layers.0.q") == "Q4_1"
    assert np.array_equal(formats.float32(checkpoint.tensor("layers.0.q")), expected)


def test_the_model_is_read(tmp_path: Path) -> None:
    path = save_gguf(tiny_model(tie_word_embeddings=True), tmp_path / "small.gguf")
    model = open_gguf(path).model
    assert (model.layers, model.hidden, model.intermediate) == (2, 64, 96)
    assert (model.heads, model.kv_heads, model.head_dim, model.vocab_rows) == (4, 2, 16, 96)
    assert model.tied_head and not model.attention_bias
    assert model.name == "small"


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"llama.rope.scaling.type": "yarn"}, "yarn"),
        ({"llama.attention.sliding_window": 128}, "sliding_window"),
        ({"llama.expert_count": 8}, "expert_count"),
        ({"split.count": 3}, "split into 3 files"),
        ({"llama.rope.scaling.attn_factor": 1.5}, "attn_factor"),
    ],
)
def test_an_unsupported_feature_is_named(
    metadata: dict[str, str | int | float], message: str, tmp_path: Path
) -> None:
    path = save_gguf(tiny_model(), tmp_path / "m.gguf", metadata=metadata)
    with pytest.raises(CheckpointError, match=message):
        open_gguf(path)


def test_missing_and_unexpected_tensors_are_all_named(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_block_count(2)
    writer.add_context_length(64)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(96)
    writer.add_head_count(4)
    writer.add_layer_norm_rms_eps(1e-5)
    for name, values in gguf_tensors(tiny_model(num_key_value_heads=4)).items():
        if name not in ("blk.1.ffn_up.weight", "output_norm.weight"):
            writer.add_tensor(name, values)
    writer.add_tensor("blk.0.attn_q_norm.weight", np.ones(16, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(CheckpointError) as caught:
        open_gguf(tmp_path / "m.gguf")
    for name in ("blk.1.ffn_up.weight", "output_norm.weight", "blk.0.attn_q_norm.weight"):
        assert name in str(caught.value)


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "qwen2")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(CheckpointError, match="qwen2"):
        open_gguf(tmp_path / "m.gguf")
