"""Stored weights: which are fused, in which layout and numerics class, and their packed bytes."""

from collections.abc import Iterable, Mapping
from typing import Literal, TypeVar

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from engine.export import formats
from engine.export.capture import PackedShape, PlainShape, WeightShape
from engine.export.checkpoint.base import Checkpoint, SourceDType, SourceModel
from engine.export.quantize import quantize_eight_bit, quantize_four_bit
from engine.export.rope import rope_table
from engine.kernels.layouts import (
    LAYOUTS,
    PANEL,
    interleave,
    pack_bf16,
    pack_q4,
    pack_q8,
    packed_bytes,
)
from engine.kernels.numerics import GROUP, NumericsClass

Quantization = Literal["none", "int8", "int4", "keep"]
Activations = Literal["int12", "bf16", "int8"]
"""What generated rows are rounded to where weights are quantised."""
GENERATED_CLASS: Mapping[Activations, NumericsClass] = {
    "int12": "int12_g32",
    "bf16": "bf16_g32",
    "int8": "int8_g32",
}
LAYOUT_OF_SOURCE: Mapping[SourceDType, str] = {
    "Q4_0": "q4p16",
    "Q4_1": "q4p16",
    "Q8_0": "q8p16",
    "F16": "bf16p16",
    "BF16": "bf16p16",
    "F32": "bf16p16",
}
T = TypeVar("T", bound=np.generic)


class Fusion(Struct, frozen=True):
    """How one packed weight is made of parameters.

    interleaved: its two parts alternate in panels of 16 rows (gate, up), else they follow each
    other. rows, k: logical sizes of each part as stored, padded with zeros. lookup: the weight is
    the embedding or the head.
    """

    parts: tuple[str, ...]
    rows: tuple[int, ...]
    k: int
    interleaved: bool = False
    lookup: bool = False


class WeightPlan(Struct, frozen=True):
    """All stored weights of a model. label: what the core says of its quantisation."""

    shapes: Mapping[str, WeightShape]
    fusions: Mapping[str, Fusion]
    plain: Mapping[str, tuple[str, ...]]
    label: str
    notes: tuple[str, ...] = field(default=())


def plan_weights(
    checkpoint: Checkpoint,
    quantization: Quantization,
    max_model_len: int,
    activations: Activations = "int12",
) -> WeightPlan:
    """Decide names, fusions, layouts and classes from the stored formats; reads no values."""
    model, notes = checkpoint.model, list[tuple[str, str]]()
    fusions = dict(_fusions(model))
    shapes: dict[str, WeightShape] = {}
    for name, fusion in fusions.items():
        sources = [checkpoint.dtype(part) for part in fusion.parts]
        layout, remarks = choose_layout(fusion, sources, quantization)
        shapes[name] = _packed_shape(name, fusion, layout, GENERATED_CLASS[activations])
        notes.extend((name, remark) for remark in remarks)
    plain = dict(_plain(model))
    for name, (size, _) in plain.items():
        shapes[name] = PlainShape(name, (size,))
    shapes["rope"] = PlainShape("rope", (max_model_len, model.head_dim))
    parts = {name: parts for name, (_, parts) in plain.items()}
    return WeightPlan(
        shapes, fusions, parts, _label(checkpoint, fusions, quantization), tuple(_summary(notes))
    )


def choose_layout(
    fusion: Fusion, sources: list[SourceDType], quantization: Quantization
) -> tuple[str, tuple[str, ...]]:
    """Return the layout of a packed weight, and remarks on what it changes."""
    kept = {LAYOUT_OF_SOURCE[source] for source in sources}
    if quantization == "keep" and len(kept) > 1:
        found = " and ".join(sorted(set(sources)))
        return "bf16p16", (f"fused parts are stored as {found}, so all become bf16",)
    if quantization in ("int8", "int4"):
        if fusion.k % GROUP:
            return "bf16p16", (f"{fusion.k} columns are not whole groups of {GROUP}: bf16",)
        return ("q8p16" if quantization == "int8" or fusion.lookup else "q4p16"), ()
    layout = kept.pop() if quantization == "keep" else "bf16p16"
    if layout != "bf16p16":
        return layout, ()
    rounded = sorted(set(sources) - {"BF16"})
    return layout, tuple(f"{source} becomes bf16" for source in rounded)


def stored_weight(checkpoint: Checkpoint, plan: WeightPlan, name: str) -> NDArray[np.generic]:
    """Read, fuse, quantise and pack one stored weight.

    Returns u8 [bytes] for a packed layout and f32 for a plain one. Raises CheckpointError when
    the checkpoint's values cannot be stored.
    """
    shape = plan.shapes[name]
    if isinstance(shape, PackedShape):
        return _pack(checkpoint, plan.fusions[name], shape)
    if name == "rope":
        return rope_table(checkpoint.model.rope, checkpoint.model.head_dim, shape.shape[0])
    parts = [formats.float32(checkpoint.tensor(part)) for part in plan.plain[name]]
    return np.concatenate(parts)


def _fusions(model: SourceModel) -> Iterable[tuple[str, Fusion]]:
    q, kv = model.heads * model.head_dim, model.kv_heads * model.head_dim
    # Panels of gate and up alternate and down reads groups of 32: one padded width serves both.
    width = _round_up(model.intermediate, GROUP)
    vocab = _round_up(model.vocab_rows, PANEL)
    yield "embed", Fusion(("embed",), (vocab,), model.hidden, lookup=True)
    for layer in range(model.layers):
        name = f"layers.{layer}."
        qkv = (f"{name}q", f"{name}k", f"{name}v")
        pair = (f"{name}gate", f"{name}up")
        yield f"{name}qkv", Fusion(qkv, (q, kv, kv), model.hidden)
        yield f"{name}o", Fusion((f"{name}o",), (model.hidden,), q)
        yield f"{name}gate_up", Fusion(pair, (width, width), model.hidden, interleaved=True)
        yield f"{name}down", Fusion((f"{name}down",), (model.hidden,), width)
    if not model.tied_head:
        yield "head", Fusion(("head",), (vocab,), model.hidden, lookup=True)


def _plain(model: SourceModel) -> Iterable[tuple[str, tuple[int, tuple[str, ...]]]]:
    """Yield name, elements and parts of each float32 vector."""
    qkv = (model.heads + 2 * model.kv_heads) * model.head_dim
    for layer in range(model.layers):
        name = f"layers.{layer}."
        yield f"{name}attn_norm", (model.hidden, (f"{name}attn_norm",))
        yield f"{name}ffn_norm", (model.hidden, (f"{name}ffn_norm",))
        if model.attention_bias:
            parts = tuple(f"{name}{part}_bias" for part in "qkv")
            yield f"{name}qkv_bias", (qkv, parts)
        if model.output_bias:
            yield f"{name}o_bias", (model.hidden, (f"{name}o_bias",))
    yield "norm", (model.hidden, ("norm",))


def _packed_shape(name: str, fusion: Fusion, layout: str, preferred: NumericsClass) -> PackedShape:
    """Classes: quantised linears take the preferred one for generated tokens and bf16_t32 for
    prompts; the head takes it for both, so that a logits row has one class whatever its role."""
    n = sum(fusion.rows)
    generated = preferred if preferred in LAYOUTS[layout].classes else "bf16_t32"
    prompt = generated if fusion.lookup else "bf16_t32"
    stored = (packed_bytes(layout, n, fusion.k),)
    return PackedShape(name, layout, n, fusion.k, stored, prompt, generated)


def _label(
    checkpoint: Checkpoint, fusions: Mapping[str, Fusion], quantization: Quantization
) -> str:
    if quantization != "keep":
        return "bf16" if quantization == "none" else quantization
    sources = {checkpoint.dtype(part) for fusion in fusions.values() for part in fusion.parts}
    names = {"bf16" if LAYOUT_OF_SOURCE[s] == "bf16p16" else s.lower() for s in sources}
    return "+".join(sorted(names))


def _summary(notes: list[tuple[str, str]]) -> Iterable[str]:
    """One line per remark, with the first weight and the number of others."""
    grouped: dict[str, list[str]] = {}
    for name, remark in notes:
        grouped.setdefault(remark, []).append(name)
    for remark, names in grouped.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield f"{names[0]}{more}: {remark}"


def _pack(checkpoint: Checkpoint, fusion: Fusion, shape: PackedShape) -> NDArray[np.uint8]:
    if shape.layout == "bf16p16":
        bits = [formats.bfloat16(checkpoint.tensor(part)) for part in fusion.parts]
        return pack_bf16(_join(fusion, bits, fusion.k))
    if shape.layout == "q8p16":
        eight = [_eight_bit(checkpoint, part) for part in fusion.parts]
        return pack_q8(
            _join(fusion, [part.codes for part in eight], fusion.k),
            _join(fusion, [part.scales for part in eight], fusion.k // GROUP),
        )
    four = [_four_bit(checkpoint, part) for part in fusion.parts]
    return pack_q4(
        _join(fusion, [part.codes for part in four], fusion.k),
        _join(fusion, [part.scales for part in four], fusion.k // GROUP),
        _join(fusion, [part.minima for part in four], fusion.k // GROUP),
    )


def _join(fusion: Fusion, parts: list[NDArray[T]], k: int) -> NDArray[T]:
    """Pad each part with zeros to its stored size and put the parts together."""
    padded = [
        np.pad(part, ((0, rows - part.shape[0]), (0, k - part.shape[1])))
        for part, rows in zip(parts, fusion.rows, strict=True)
    ]
    return interleave(padded[0], padded[1]) if fusion.interleaved else np.concatenate(padded)


def _eight_bit(checkpoint: Checkpoint, part: str) -> formats.EightBit:
    tensor = checkpoint.tensor(part)
    if tensor.dtype == "Q8_0":
        return formats.eight_bit(tensor)
    return quantize_eight_bit(tensor.name, _whole_groups(formats.float32(tensor)))


def _four_bit(checkpoint: Checkpoint, part: str) -> formats.FourBit:
    tensor = checkpoint.tensor(part)
    if tensor.dtype in ("Q4_0", "Q4_1"):
        return formats.four_bit(tensor)
    return quantize_four_bit(tensor.name, _whole_groups(formats.float32(tensor)))


def _whole_groups(values: formats.F32) -> formats.F32:
    return np.pad(values, ((0, 0), (0, -values.shape[1] % GROUP)))


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
