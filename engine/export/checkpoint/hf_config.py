"""A Hugging Face Llama configuration (config.json) as a source model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.errors import CheckpointError
from engine.export.checkpoint.base import RopeSpec, SourceModel
from engine.export.checkpoint.fields import Fields
from engine.export.checkpoint.paths import inside
from engine.export.checkpoint.safetensors_file import parse_object
from engine.export.checkpoint.sizes import check_sizes

ARCHITECTURE = "LlamaForCausalLM"
MAX_CONFIG_BYTES = 16 << 20
ROPE_KEYS = frozenset(
    {
        "type",
        "rope_type",
        "rope_theta",
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
        "partial_rotary_factor",
    }
)


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """Read a JSON object from a file of the checkpoint. Raises CheckpointError."""
    path = inside(folder, name)
    if path.stat().st_size > MAX_CONFIG_BYTES:
        raise CheckpointError(f"{path} is larger than {MAX_CONFIG_BYTES} bytes")
    return parse_object(str(folder / name), path.read_bytes())


def hf_model(folder: Path, name: str) -> SourceModel:
    """Read and check the model's sizes. Raises CheckpointError naming what is not supported."""
    fields = Fields(str(folder / "config.json"), read_json(folder, "config.json"))
    _refuse_unsupported(fields)
    hidden, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    if not fields.has("head_dim") and hidden % heads:
        raise fields.wrong("hidden_size", f"a multiple of {heads} heads (no head_dim)", hidden)
    bias = fields.flag("attention_bias", False)
    context = fields.size("max_position_embeddings", 2048)
    model = SourceModel(
        name=name,
        architecture="llama",
        layers=fields.size("num_hidden_layers"),
        hidden=hidden,
        intermediate=fields.size("intermediate_size"),
        heads=heads,
        kv_heads=fields.size("num_key_value_heads", heads),
        head_dim=fields.size("head_dim", max(1, hidden // heads)),
        vocab_rows=fields.size("vocab_size"),
        context_length=context,
        rms_eps=fields.real("rms_norm_eps", 1e-6),
        rope=rope_spec(fields, context),
        tied_head=fields.flag("tie_word_embeddings", False),
        attention_bias=bias,
        output_bias=bias,
    )
    check_sizes(fields.source, model)
    return model


def _refuse_unsupported(fields: Fields) -> None:
    names = fields.values.get("architectures")
    kind = fields.values.get("model_type")
    if names != [ARCHITECTURE] or kind != "llama":
        raise fields.unsupported(f"architecture {names!r:.80} (model_type {kind!r:.40})")
    if fields.text("hidden_act", "silu") != "silu":
        raise fields.unsupported(f"hidden_act {fields.text('hidden_act')!r}")
    for key in ("mlp_bias", "sliding_window", "quantization_config"):
        if fields.values.get(key):
            raise fields.unsupported(key)
    if fields.real("partial_rotary_factor", 1.0) != 1.0:
        raise fields.unsupported("partial_rotary_factor")
    layer_types = fields.values.get("layer_types") or []
    if not isinstance(layer_types, list) or any(t != "full_attention" for t in layer_types):
        raise fields.unsupported("layer_types other than full_attention")


def rope_spec(fields: Fields, context: int) -> RopeSpec:
    """Read the rotary settings in either spelling: ``rope_scaling`` with ``type`` or ``rope_type``
    and a top-level ``rope_theta``, or ``rope_parameters`` that holds all of them.
    """
    key = "rope_scaling" if fields.values.get("rope_scaling") else "rope_parameters"
    values = fields.values.get(key)
    if not values:
        return RopeSpec(fields.real("rope_theta", 10000.0))
    if not isinstance(values, Mapping):
        raise fields.wrong(key, "an object", values)
    rope = Fields(f"{fields.source}: {key}", values)
    if unknown := sorted(set(values) - ROPE_KEYS):
        raise rope.unsupported(", ".join(unknown))
    theta = rope.real("rope_theta", fields.real("rope_theta", 10000.0))
    if rope.real("partial_rotary_factor", 1.0) != 1.0:
        raise rope.unsupported("partial_rotary_factor")
    kind = rope.text("rope_type", rope.text("type", "default"))
    if rope.text("type", kind) != kind:
        raise rope.wrong("type", f"the same as rope_type {kind!r}", rope.text("type"))
    if kind == "default":
        return RopeSpec(theta)
    if kind == "linear":
        return RopeSpec(theta, "linear", rope.real("factor"))
    if kind == "llama3":
        return _llama3(rope, theta, context)
    raise fields.unsupported(f"{key} type {kind!r}")


def _llama3(rope: Fields, theta: float, context: int) -> RopeSpec:
    low, high = rope.real("low_freq_factor"), rope.real("high_freq_factor")
    if high <= low:
        raise rope.wrong("high_freq_factor", f"greater than low_freq_factor {low}", high)
    original = rope.size("original_max_position_embeddings", context)
    return RopeSpec(theta, "llama3", rope.real("factor"), low, high, original)
