"""The Llama architecture (Touvron et al. 2023): one definition for every kind and capacity."""

from engine.core.schema import ModelSpec
from engine.export.capture import Heads, Recorder, Value
from engine.ir.program import Program


def record_llama(r: Recorder, model: ModelSpec) -> Program:
    """Record the whole model: token ids to logits of the wanted rows."""
    x = r.embed("x", "embed")
    for layer in range(model.layers):
        x = _attention(r, model, x, layer)
        x = _feed_forward(r, model, x, layer)
    rows = r.gather_rows("rows", x)
    final = r.rms_norm("final", rows, "norm", model.rms_eps)
    return r.finish(r.linear("logits", final, "embed" if model.tied_head else "head"))


def _attention(r: Recorder, model: ModelSpec, x: Value, layer: int) -> Value:
    name = f"layers.{layer}."
    sizes = Heads(model.heads, model.kv_heads, model.head_dim)
    h = r.rms_norm(f"{name}attn_in", x, f"{name}attn_norm", model.rms_eps)
    qkv = r.linear(f"{name}qkv_out", h, f"{name}qkv", bias=r.optional(f"{name}qkv_bias"))
    q = r.rope_store_kv(f"{name}q", qkv, "rope", sizes, layer)
    a = r.paged_attention(f"{name}attn", q, sizes, layer, model.head_dim**-0.5)
    bias = r.optional(f"{name}o_bias")
    return r.linear(f"{name}attn_out", a, f"{name}o", bias=bias, residual=x)


def _feed_forward(r: Recorder, model: ModelSpec, x: Value, layer: int) -> Value:
    name = f"layers.{layer}."
    h = r.rms_norm(f"{name}ffn_in", x, f"{name}ffn_norm", model.rms_eps)
    g = r.linear(f"{name}ffn_mid", h, f"{name}gate_up", activation="silu_mul")
    return r.linear(f"{name}ffn_out", g, f"{name}down", residual=x)
