"""The operation set: what each op reads, writes and is told. The verifier enforces it.

Row order inside a launch: first all rows of the *generated* role, then all rows of the
*prompt* role; the logits rows follow the same order. ``linear`` takes its numerics class
from the role, so a launch has at most one boundary (``BatchShape.generated_tokens``).
"""

from msgspec import Struct

INPUTS: dict[str, tuple[str | int, ...]] = {
    "token_ids": ("tokens",),
    "positions": ("tokens",),
    "slots": ("tokens",),
    "seg_starts": ("seqs",),
    "seq_lens": ("seqs",),
    "block_tables": ("seqs",),
    "logit_rows": ("logits",),
}
"""Host-filled int32 inputs that every program has, by name.

token_ids[t]; positions[t]: absolute position in its sequence; slots[t]: cache slot
``block * block_size + offset`` that the row's key and value go to. Segment s owns rows
``seg_starts[s] .. seg_starts[s + 1]`` (the host fills seqs + 1 entries); seq_lens[s] is the
number of keys that the segment's last row sees (its position + 1); block_tables[s] is the
segment's row of block ids (row stride: the device's max_blocks). logit_rows[l] is a
row of the launch. All rows of a segment are consecutive positions of one sequence and one role.
"""

STATE = "kv_cache"
"""Name of the one STATE buffer (dtype u8; its layout is the device's: ``KVLayout``)."""


class OpSpec(Struct, frozen=True):
    """Names of an op's operands, in order, and of its attributes, all of which it must carry."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: tuple[str, ...]
    optional_inputs: tuple[str, ...] = ()
    optional_attrs: tuple[str, ...] = ()


OPS: dict[str, OpSpec] = {
    # x[t] = dequantised row token_ids[t] of the packed [vocab, width] weight.
    "embed": OpSpec(("token_ids", "weight"), ("x",), ("vocab", "width", "layout")),
    # y = x / sqrt(mean(x^2) + eps) * weight, per row (Zhang & Sennrich 2019).
    "rms_norm": OpSpec(("x", "weight"), ("y",), ("width", "eps")),
    # y = act(x @ W^T + bias) + residual. n, k: logical sizes of W. activation: "none" or
    # "silu_mul" (W holds panels gate, up, gate, up ...; y = silu(gate) * up is n / 2 wide).
    # layout: see engine/kernels/layouts.py. bias and residual are flags (bool) that say
    # whether those optional inputs follow. With prompt_layout, prompt_weight is the same weight in
    # that layout, and rows of the prompt role read it instead.
    # prompt_class / generated_class: numerics class per role (engine/kernels/numerics.py).
    "linear": OpSpec(
        ("x", "weight"),
        ("y",),
        ("n", "k", "layout", "activation", "bias", "residual", "prompt_class", "generated_class"),
        optional_inputs=("prompt_weight", "bias", "residual"),
        optional_attrs=("prompt_layout",),
    ),
    # Split qkv [t, (heads + 2 kv_heads) * head_dim] into q, k, v; rotate q and k (neox halves,
    # Su et al. 2021) by rope[positions[t]] = cos | sin, each head_dim / 2 wide; write k and v as
    # bf16 (round to nearest even) to the cache at slots[t] of ``layer``; q out, unscaled.
    "rope_store_kv": OpSpec(
        ("qkv", "rope", "positions", "slots", "kv_cache"),
        ("q",),
        ("heads", "kv_heads", "head_dim", "layer"),
    ),
    # Causal attention of each segment's rows over its block table: grouped queries, scores
    # times scale, keys in tiles of 64 at absolute positions.
    "paged_attention": OpSpec(
        ("q", "kv_cache", "positions", "seg_starts", "seq_lens", "block_tables"),
        ("y",),
        ("heads", "kv_heads", "head_dim", "layer", "scale"),
    ),
    # y[l] = x[logit_rows[l]].
    "gather_rows": OpSpec(("x", "logit_rows"), ("y",), ("width",)),
}
