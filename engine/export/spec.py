"""The model as a core describes it, from the source model and its tokenizer."""

from engine.core.schema import KVLayout, ModelSpec
from engine.errors import CheckpointError
from engine.export.checkpoint.base import SourceModel, SourceText
from engine.kernels.layouts import PANEL
from engine.kernels.numerics import KEY_TILE


def model_spec(source: SourceModel, text: SourceText, quantization: str) -> ModelSpec:
    """Return the model's description for the manifest.

    Raises CheckpointError when the tokenizer and the model do not fit each other.
    """
    if text.vocab_size > source.vocab_rows:
        raise CheckpointError(
            f"the tokenizer has {text.vocab_size} ids, "
            f"but the model embeds only {source.vocab_rows}",
            "Resize the model's embedding, or remove the added tokens.",
        )
    return ModelSpec(
        id=source.name,
        architecture=source.architecture,
        layers=source.layers,
        hidden=source.hidden,
        intermediate=source.intermediate,
        heads=source.heads,
        kv_heads=source.kv_heads,
        head_dim=source.head_dim,
        vocab_size=text.vocab_size,
        logits_width=-(-source.vocab_rows // PANEL) * PANEL,
        context_length=source.context_length,
        rms_eps=source.rms_eps,
        rope_theta=source.rope.theta,
        tied_head=source.tied_head,
        quantization=quantization,
        eos_token_ids=text.eos_ids,
        kv=KVLayout(source.layers, source.kv_heads, source.head_dim, KEY_TILE),
        attention_bias=source.attention_bias,
    )
