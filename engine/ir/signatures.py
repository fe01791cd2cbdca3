"""Types of every op's operands: the second half of the op specification (see ``ops``)."""

from collections.abc import Callable, Mapping
from typing import get_args

from msgspec import Struct

from engine.ir.ops import INPUTS, STATE
from engine.ir.program import Attr, Dim, DType, Launch, Space
from engine.kernels.layouts import LAYOUTS, PANEL
from engine.kernels.numerics import GROUP, NumericsClass

_VALUES = frozenset({Space.TEMP, Space.OUTPUT})
_ROWS = ("tokens", "logits")


class Operand(Struct, frozen=True):
    """What a buffer must be to take a place in a launch.

    shape: None fits any constant shape (packed weights); "rows" stands for the launch's row
    symbol, tokens or logits; a None dimension fits any constant. name: required buffer name.
    """

    role: str
    spaces: frozenset[Space]
    dtype: DType
    shape: tuple[Dim | None, ...] | None
    name: str | None = None


class Signature(Struct, frozen=True):
    """Operands of one launch. in_place: index of the input that ``outputs[0]`` may overwrite."""

    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    in_place: int | None = None


ATTRIBUTES: Mapping[str, type | tuple[str, ...]] = {
    "vocab": int,
    "width": int,
    "layout": tuple(LAYOUTS),
    "prompt_layout": tuple(LAYOUTS),
    "eps": float,
    "n": int,
    "k": int,
    "activation": ("none", "silu_mul"),
    "bias": bool,
    "residual": bool,
    "prompt_class": get_args(NumericsClass),
    "generated_class": get_args(NumericsClass),
    "heads": int,
    "kv_heads": int,
    "head_dim": int,
    "layer": int,
    "scale": float,
}
"""Type of each attribute, or its allowed values. Numbers are positive; ``layer`` may be 0."""


def _value(role: str, *shape: Dim) -> Operand:
    return Operand(role, _VALUES, "f32", shape)


def _plain(role: str, *shape: Dim | None) -> Operand:
    return Operand(role, frozenset({Space.WEIGHT}), "f32", shape)


def _packed(role: str) -> Operand:
    return Operand(role, frozenset({Space.WEIGHT}), "u8", None)


def _host(name: str) -> Operand:
    return Operand(name, frozenset({Space.INPUT}), "i32", INPUTS[name], name)


def _cache() -> Operand:
    return Operand(STATE, frozenset({Space.STATE}), "u8", None, STATE)


def _int(attrs: Mapping[str, Attr], name: str) -> int:
    value = attrs[name]
    assert isinstance(value, int)  # checked against ATTRIBUTES before
    return value


def _embed(attrs: Mapping[str, Attr]) -> Signature:
    return Signature(
        (_host("token_ids"), _packed("weight")),
        (_value("x", "tokens", _int(attrs, "width")),),
    )


def _rms_norm(attrs: Mapping[str, Attr]) -> Signature:
    width = _int(attrs, "width")
    inputs = (_value("x", "rows", width), _plain("weight", width))
    return Signature(inputs, (_value("y", "rows", width),))


def _linear(attrs: Mapping[str, Attr]) -> Signature:
    n, k = _int(attrs, "n"), _int(attrs, "k")
    out = n // 2 if attrs["activation"] == "silu_mul" else n
    inputs = [_value("x", "rows", k), _packed("weight")]
    if "prompt_layout" in attrs:
        inputs.append(_packed("prompt_weight"))
    if attrs["bias"]:
        inputs.append(_plain("bias", n))
    in_place = None
    if attrs["residual"]:
        in_place = len(inputs)
        inputs.append(_value("residual", "rows", out))
    return Signature(tuple(inputs), (_value("y", "rows", out),), in_place)


def _rope_store_kv(attrs: Mapping[str, Attr]) -> Signature:
    heads, kv_heads, dim = (_int(attrs, name) for name in ("heads", "kv_heads", "head_dim"))
    qkv = _value("qkv", "tokens", (heads + 2 * kv_heads) * dim)
    rope = _plain("rope", None, dim)
    inputs = (qkv, rope, _host("positions"), _host("slots"), _cache())
    return Signature(inputs, (_value("q", "tokens", heads * dim),))


def _paged_attention(attrs: Mapping[str, Attr]) -> Signature:
    width = _int(attrs, "heads") * _int(attrs, "head_dim")
    names = ("positions", "seg_starts", "seq_lens", "block_tables")
    inputs = (_value("q", "tokens", width), _cache(), *map(_host, names))
    return Signature(inputs, (_value("y", "tokens", width),))


def _gather_rows(attrs: Mapping[str, Attr]) -> Signature:
    width = _int(attrs, "width")
    inputs = (_value("x", "tokens", width), _host("logit_rows"))
    return Signature(inputs, (_value("y", "logits", width),))


SIGNATURES: Mapping[str, Callable[[Mapping[str, Attr]], Signature]] = {
    "embed": _embed,
    "rms_norm": _rms_norm,
    "linear": _linear,
    "rope_store_kv": _rope_store_kv,
    "paged_attention": _paged_attention,
    "gather_rows": _gather_rows,
}
"""Signature of each op of ``ops.OPS``, given its checked attributes."""


def relations(launch: Launch) -> str | None:
    """Return what is wrong between a launch's attributes, or None. They are well typed."""
    attrs = launch.attrs
    if launch.op == "linear":
        return _linear_relations(attrs)
    if "heads" in attrs:
        heads, kv_heads, dim = (_int(attrs, name) for name in ("heads", "kv_heads", "head_dim"))
        if heads % kv_heads:
            return f"{heads} heads are no multiple of {kv_heads} KV heads"
        if dim % 2:
            return f"head_dim {dim} is odd"
    return _columns(attrs, "width") if launch.op == "embed" else None


def _columns(attrs: Mapping[str, Attr], name: str) -> str | None:
    layout, columns = LAYOUTS[str(attrs["layout"])], _int(attrs, name)
    if layout.pad_k or columns % GROUP == 0:
        return None
    return f"{name} {columns} is no multiple of {GROUP}, which {layout.name} needs"


def _linear_relations(attrs: Mapping[str, Attr]) -> str | None:
    layout = LAYOUTS[str(attrs["layout"])]
    for role in ("prompt_class", "generated_class"):
        if attrs[role] not in layout.classes:
            return f"{role}: no kernel computes {attrs[role]} on {layout.name}"
    if "prompt_layout" in attrs:
        if attrs["prompt_class"] == attrs["generated_class"]:
            return "prompt_layout: both roles have one class, so they read one weight"
        second = LAYOUTS[str(attrs["prompt_layout"])]
        if attrs["prompt_class"] not in second.classes:
            return f"prompt_layout: no kernel computes {attrs['prompt_class']} on {second.name}"
    pair = 2 * PANEL
    if attrs["activation"] == "silu_mul" and _int(attrs, "n") % pair:
        return f"n {attrs['n']} is no multiple of {pair}: silu_mul takes panels in pairs"
    return _columns(attrs, "k")


def fits(operand: Operand, shape: tuple[Dim, ...], rows: str) -> bool:
    """Say whether a buffer shape fits an operand in a launch over ``rows``."""
    if operand.shape is None:
        return all(isinstance(dim, int) for dim in shape) or operand.name is not None
    if len(shape) != len(operand.shape):
        return False
    for wanted, dim in zip(operand.shape, shape, strict=True):
        if wanted is None:
            if not isinstance(dim, int):
                return False
        elif dim != (rows if wanted == "rows" else wanted):
            return False
    return True


def row_symbol(operand: Operand, shape: tuple[Dim, ...]) -> str | None:
    """Return the row symbol that a buffer gives to a launch, or None if it has none."""
    if operand.shape is None or not operand.shape or operand.shape[0] != "rows" or not shape:
        return None
    first = shape[0]
    return first if isinstance(first, str) and first in _ROWS else None
