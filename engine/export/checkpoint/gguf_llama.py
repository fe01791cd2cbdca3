"""Llama models in GGUF files: metadata, tensor names, and the row order of q and k."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from msgspec import Struct

from engine.errors import CheckpointError
from engine.export.checkpoint.base import (
    RopeSpec,
    SourceDType,
    SourceModel,
    SourceTensor,
)
from engine.export.checkpoint.fields import Fields
from engine.export.checkpoint.gguf_file import GgufFile, read_gguf
from engine.export.checkpoint.mapped import TensorFile
from engine.export.checkpoint.parameters import bind, listing, llama_parameters, source_names
from engine.export.checkpoint.sizes import check_sizes

TOP = {"embed": "token_embd.weight", "norm": "output_norm.weight", "head": "output.weight"}
LAYER = {
    "attn_norm": "attn_norm.weight",
    "q": "attn_q.weight",
    "k": "attn_k.weight",
    "v": "attn_v.weight",
    "o": "attn_output.weight",
    "q_bias": "attn_q.bias",
    "k_bias": "attn_k.bias",
    "v_bias": "attn_v.bias",
    "o_bias": "attn_output.bias",
    "ffn_norm": "ffn_norm.weight",
    "gate": "ffn_gate.weight",
    "up": "ffn_up.weight",
    "down": "ffn_down.weight",
}
ROPE_FACTORS = "rope_freqs.weight"
KNOWN_KEYS = frozenset(
    {
        "llama.attention.head_count",
        "llama.attention.head_count_kv",
        "llama.attention.key_length",
        "llama.attention.value_length",
        "llama.attention.layer_norm_rms_epsilon",
        "llama.rope.dimension_count",
        "llama.rope.freq_base",
        "llama.rope.scaling.type",
        "llama.rope.scaling.factor",
        "llama.rope.scaling.original_context_length",
        "llama.rope.scaling.finetuned",
    }
)
"""Keys of the groups below that are understood; any other would change what the model computes."""
COMPUTING_GROUPS = ("llama.attention.", "llama.rope.", "llama.expert")


class GgufCheckpoint(Struct, frozen=True):
    """An open GGUF checkpoint (``base.Checkpoint``). names: logical -> tensor name."""

    file: TensorFile
    metadata: Mapping[str, Any]
    model: SourceModel
    names: Mapping[str, str]
    notes: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[Path, ...]:
        return (self.file.path,)

    @property
    def default_quantization(self) -> Literal["none", "keep"]:
        return "keep"

    def dtype(self, name: str) -> SourceDType:
        return self.file.tensors[self.names[name]].dtype

    def tensor(self, name: str) -> SourceTensor:
        tensor = self.file.tensor(self.names[name])
        heads = {"q": self.model.heads, "k": self.model.kv_heads}
        part = name.rpartition(".")[2].removesuffix("_bias")
        return restore_rows(tensor, heads[part]) if part in heads else tensor


def open_gguf(path: Path, name: str | None = None) -> GgufCheckpoint:
    """Open a GGUF file. ``name``: the model's name, from the file when None.

    Raises CheckpointError for a damaged file, an unsupported model, or missing tensors.
    """
    parsed = read_gguf(path)
    file = parsed.file
    model = gguf_model(parsed, name)
    wanted = {
        logical: (source_names(logical, TOP, LAYER, "blk.{}."), shape)
        for logical, shape in llama_parameters(model).items()
    }
    available = {key: info.shape for key, info in file.tensors.items() if key != ROPE_FACTORS}
    return GgufCheckpoint(file, parsed.metadata, model, bind(str(path), wanted, available))


def restore_rows(tensor: SourceTensor, heads: int) -> SourceTensor:
    """Undo the row order that GGUF's llama converter gives q and k.

    The converter interleaves the two rotary halves of each head (row 2 i + j of a head holds row
    j * head_dim / 2 + i of the original). Biases are vectors of values in the same order.
    """
    data = tensor.data
    if len(tensor.shape) == 1:
        data = data.reshape(tensor.shape[0], -1)
    half = data.shape[0] // heads // 2
    rows = data.reshape(heads, half, 2, -1).swapaxes(1, 2).reshape(tensor.data.shape)
    return SourceTensor(tensor.name, tensor.dtype, tensor.shape, np.ascontiguousarray(rows))


def gguf_model(parsed: GgufFile, name: str | None) -> SourceModel:
    """Read and check the model's sizes from the metadata."""
    file = parsed.file
    fields = Fields(str(file.path), parsed.metadata)
    if fields.text("general.architecture") != "llama":
        raise fields.unsupported(f"architecture {fields.text('general.architecture')!r}")
    if fields.values.get("split.count", 1) != 1:
        raise fields.unsupported(f"a model split into {fields.values['split.count']!r:.20} files")
    _refuse_unknown(fields)
    hidden, heads = _size(fields, "embedding_length"), _size(fields, "attention.head_count")
    head_dim = _head_dim(fields, hidden, heads)
    kv_heads = fields.size("llama.attention.head_count_kv", heads)
    embed = file.tensors.get(TOP["embed"])
    if embed is None:
        raise CheckpointError(f"{file.path}: tensor {TOP['embed']!r} is missing")
    model = SourceModel(
        name=name or file.path.stem,
        architecture="llama",
        layers=_size(fields, "block_count"),
        hidden=hidden,
        intermediate=_size(fields, "feed_forward_length"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_rows=embed.shape[0],
        context_length=_size(fields, "context_length"),
        rms_eps=fields.real("llama.attention.layer_norm_rms_epsilon"),
        rope=_rope(fields, file, head_dim),
        tied_head=TOP["head"] not in file.tensors,
        attention_bias="blk.0.attn_q.bias" in file.tensors,
        output_bias="blk.0.attn_output.bias" in file.tensors,
    )
    check_sizes(fields.source, model)
    return model


def _size(fields: Fields, key: str) -> int:
    return fields.size(f"llama.{key}")


def _head_dim(fields: Fields, hidden: int, heads: int) -> int:
    head_dim = fields.size("llama.attention.key_length", max(1, hidden // heads))
    if fields.size("llama.attention.value_length", head_dim) != head_dim:
        raise fields.unsupported("a value_length other than the key_length")
    if fields.size("llama.rope.dimension_count", head_dim) != head_dim:
        raise fields.unsupported("partial rotary embedding (rope.dimension_count)")
    return head_dim


def _refuse_unknown(fields: Fields) -> None:
    unknown = [
        key
        for key in fields.values
        if key.startswith(COMPUTING_GROUPS) and key not in KNOWN_KEYS and fields.values[key]
    ]
    if unknown:
        raise fields.unsupported(f"metadata {listing(unknown)}")


def _rope(fields: Fields, file: TensorFile, head_dim: int) -> RopeSpec:
    theta = fields.real("llama.rope.freq_base", 10000.0)
    kind = fields.text("llama.rope.scaling.type", "none")
    factors = _rope_factors(file, head_dim)
    if kind == "none":
        return RopeSpec(theta, factors=factors)
    if kind == "linear":
        factor = fields.real("llama.rope.scaling.factor")
        return RopeSpec(theta, "linear", factor, factors=factors)
    raise fields.unsupported(f"rope scaling type {kind!r}")


def _rope_factors(file: TensorFile, head_dim: int) -> tuple[float, ...] | None:
    info = file.tensors.get(ROPE_FACTORS)
    if info is None:
        return None
    if info.dtype != "F32" or info.shape != (head_dim // 2,):
        raise CheckpointError(
            f"{file.path}: {ROPE_FACTORS} is {info.dtype} {list(info.shape)}, "
            f"expected F32 [{head_dim // 2}]"
        )
    values = file.tensor(ROPE_FACTORS).data.view(np.float32).ravel()
    if not np.all(np.isfinite(values) & (values > 0)):
        raise CheckpointError(f"{file.path}: {ROPE_FACTORS} must be positive numbers")
    return tuple(float(value) for value in values)
