"""Every op of the IR in torch float32: the oracle that kernels are compared with.

Values are [rows, width] float32. Nothing is quantised but what is stored so: weights are
dequantised exactly, keys and values are rounded to bfloat16 as the cache holds them.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from engine.kernels.layouts import PANEL


def embed(token_ids: Tensor, weight: Tensor) -> Tensor:
    """Return the rows ``token_ids`` of weight [vocab, width]."""
    return weight[token_ids]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return x / sqrt(mean(x^2) + eps) * weight, per row (Zhang & Sennrich 2019, eq. 4)."""
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps) * weight


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    activation: str = "none",
) -> Tensor:
    """Return act(x @ weight^T + bias) + residual, for weight [n, k]."""
    y = functional.linear(x, weight, bias)
    if activation == "silu_mul":
        y = silu_mul(y)
    return y if residual is None else y + residual


def silu_mul(y: Tensor) -> Tensor:
    """Return silu(gate) * up; the columns of y are panels gate, up, gate, up ... of 16."""
    panels = y.reshape(y.shape[0], -1, 2, PANEL)
    return (functional.silu(panels[:, :, 0]) * panels[:, :, 1]).reshape(y.shape[0], -1)


def rotate(x: Tensor, rope: Tensor) -> Tensor:
    """Rotate x [rows, heads, head_dim] by rope [rows, head_dim] = cos | sin (Su et al. 2021,
    eq. 34, with the pairs (i, i + head_dim / 2))."""
    half = x.shape[-1] // 2
    cos, sin = rope[:, None, :half], rope[:, None, half:]
    first, second = x[..., :half], x[..., half:]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def split_rotate(
    qkv: Tensor, rope: Tensor, heads: int, kv_heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Split qkv [rows, (heads + 2 kv_heads) head_dim]; return q and k rotated, and v.

    rope: [rows, head_dim], the rows' own. Results are [rows, heads, head_dim].
    """
    parts = qkv.reshape(qkv.shape[0], heads + 2 * kv_heads, -1)
    q, k, v = parts[:, :heads], parts[:, heads : heads + kv_heads], parts[:, heads + kv_heads :]
    return rotate(q, rope), rotate(k, rope), v


def attention(q: Tensor, keys: Tensor, values: Tensor, positions: Tensor, scale: float) -> Tensor:
    """Dense causal attention of one sequence with grouped queries.

    q: [rows, heads, head_dim]; keys, values: [length, kv_heads, head_dim]; a row sees the keys
    at positions up to its own. Returns [rows, heads, head_dim].
    """
    group = q.shape[1] // keys.shape[1]
    k = keys.repeat_interleave(group, dim=1)
    v = values.repeat_interleave(group, dim=1)
    scores = torch.einsum("rhd,lhd->hrl", q, k) * scale
    hidden = torch.arange(k.shape[0])[None, :] > positions[:, None]
    weights = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1)
    return torch.einsum("hrl,lhd->rhd", weights, v)


def paged_attention(
    q: Tensor,
    cache: Tensor,
    positions: Tensor,
    starts: Sequence[int],
    lengths: Sequence[int],
    slots: Sequence[Tensor],
    scale: float,
) -> Tensor:
    """Attention of each segment's rows over its own keys.

    q: [rows, heads, head_dim]; cache: [slots, 2, kv_heads, head_dim] of one layer; segment s has
    the rows starts[s] .. starts[s + 1] and its keys, lengths[s] of them, at slots[s].
    """
    y = torch.empty_like(q)
    for s, length in enumerate(lengths):
        rows = slice(starts[s], starts[s + 1])
        stored = cache[slots[s][:length]].float()
        y[rows] = attention(q[rows], stored[:, 0], stored[:, 1], positions[rows], scale)
    return y
