"""Small random Llama checkpoints: safetensors directories and GGUF files of the same weights."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from transformers import LlamaConfig, LlamaForCausalLM

from tests.support.tokenizers import byte_level_metadata, hf_tokenizer

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
HF_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def tiny_config(**changes: Any) -> LlamaConfig:
    """A two-layer model with grouped queries; every size small."""
    values: dict[str, Any] = {
        "vocab_size": 96,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "eos_token_id": 2,
        "bos_token_id": 1,
        "pad_token_id": None,
    }
    return LlamaConfig(**(values | changes))


def tiny_model(seed: int = 0, dtype: str = "fp32", **changes: Any) -> LlamaForCausalLM:
    """A random model whose norms and biases are random too."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(tiny_config(**changes)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.2)
            elif "norm" in name:
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.normal_(0, 0.15)
    return model.to(DTYPES[dtype])


def save_hf(
    model: LlamaForCausalLM, folder: Path, shard_bytes: int | str = "1GB", **config: Any
) -> Path:
    """Write a safetensors directory; ``config`` overrides keys of config.json."""
    model.save_pretrained(folder, max_shard_size=shard_bytes)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    return folder


def save_gguf(
    model: LlamaForCausalLM,
    path: Path,
    types: Mapping[str, gguf.GGMLQuantizationType] | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Path:
    """Write a GGUF file as the usual converter does: q and k rows permuted, linears quantised.

    types: GGUF tensor name suffix -> type; F32 for others.
    """
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    for key, value in ({"tokenizer.ggml.eos_token_id": 2} | dict(metadata or {})).items():
        _add_value(writer, key, value)
    for name, values in gguf_tensors(model).items():
        kind = _type_of(name, types or {})
        data = values if kind is None else gguf.quantize(values, kind)
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def complete_hf(folder: Path, shard_bytes: int | str = "1GB", **changes: Any) -> LlamaForCausalLM:
    """Write a model directory with a tokenizer, ready to export; the model that it holds."""
    tokenizer = hf_tokenizer()
    model = tiny_model(**({"vocab_size": tokenizer.get_vocab_size(), "eos_token_id": 1} | changes))
    save_hf(model, folder, shard_bytes)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "</s>", "bos_token": "<s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return model


def complete_gguf(
    path: Path, types: Mapping[str, gguf.GGMLQuantizationType] | None = None, **changes: Any
) -> LlamaForCausalLM:
    """Write a GGUF file with a tokenizer, ready to export; the model that it was made of."""
    metadata = byte_level_metadata(pre="gpt-2")
    vocab_size = len(metadata["tokenizer.ggml.tokens"])
    model = tiny_model(**({"vocab_size": vocab_size} | changes))
    save_gguf(model, path, types, metadata)
    return model


def _add_value(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if key == "general.architecture":
        return
    add = {
        str: writer.add_string,
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        list: writer.add_array,
    }
    add[type(value)](key, value)


def _type_of(
    name: str, types: Mapping[str, gguf.GGMLQuantizationType]
) -> gguf.GGMLQuantizationType | None:
    return next((kind for suffix, kind in types.items() if name.endswith(suffix)), None)


def gguf_tensors(model: LlamaForCausalLM) -> dict[str, NDArray[np.float32]]:
    """All tensors under GGUF names, in GGUF row order, float32."""
    config = model.config
    state = {name: value.float().numpy() for name, value in model.state_dict().items()}
    tensors = {
        "token_embd.weight": state["model.embed_tokens.weight"],
        "output_norm.weight": state["model.norm.weight"],
    }
    if not config.tie_word_embeddings:
        tensors["output.weight"] = state["lm_head.weight"]
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for layer in range(config.num_hidden_layers):
        for name, source in HF_LAYER.items():
            for kind in ("weight", "bias"):
                values = state.get(f"model.layers.{layer}.{source}.{kind}")
                if values is None:
                    continue
                if name in heads:
                    values = permute_rows(values, heads[name])
                tensors[f"blk.{layer}.{name}.{kind}"] = values
    return tensors


def permute_rows(values: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """The converter's row order: the two rotary halves of each head interleaved."""
    half = values.shape[0] // heads // 2
    out = np.empty_like(values)
    for head in range(heads):
        for i in range(half):
            for j in range(2):
                base = head * 2 * half
                out[base + 2 * i + j] = values[base + j * half + i]
    return out
