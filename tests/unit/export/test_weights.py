"""Stored weights: bit for bit from GGUF, within half a step when quantised, fused as planned."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from engine.errors import CheckpointError
from engine.export import formats
from engine.export.capture import PackedShape
from engine.export.checkpoint.base import Checkpoint
from engine.export.checkpoint.gguf_llama import open_gguf
from engine.export.checkpoint.hf_llama import open_hf
from engine.export.quantize import quantize_eight_bit, quantize_four_bit
from engine.export.weights import Activations, Quantization, plan_weights, stored_weight
from engine.kernels.layouts import dequantise, unpack
from tests.support.checkpoints import gguf_tensors, save_gguf, save_hf, tiny_model

TYPES = gguf.GGMLQuantizationType
LINEARS = ("attn_q.weight", "attn_k.weight", "attn_v.weight", "attn_output.weight",
           "ffn_gate.weight", "ffn_up.weight", "ffn_down.weight")  # fmt: skip


def linears(kind: TYPES, **others: TYPES) -> dict[str, TYPES]:
    return dict.fromkeys(LINEARS, kind) | {
        name.replace("__", "."): value for name, value in others.items()
    }


def packed(checkpoint: Checkpoint, quantization: Quantization, name: str) -> tuple[Any, Any]:
    plan = plan_weights(checkpoint, quantization, 64)
    shape = plan.shapes[name]
    assert isinstance(shape, PackedShape)
    array = stored_weight(checkpoint, plan, name)
    assert array.shape == shape.stored and array.dtype == np.uint8
    return shape, array


def original_rows(model: Any, layer: int, *parts: str) -> np.ndarray[Any, Any]:
    state = model.state_dict()
    names = {"q": "self_attn", "k": "self_attn", "v": "self_attn", "o": "self_attn"}
    return np.concatenate(
        [
            state[f"model.layers.{layer}.{names.get(part, 'mlp')}.{part}_proj.weight"]
            .float()
            .numpy()
            for part in parts
        ]
    )


@pytest.mark.parametrize("kind", [TYPES.Q4_0, TYPES.Q4_1, TYPES.Q8_0])
def test_gguf_blocks_are_kept_bit_for_bit(kind: TYPES, tmp_path: Path) -> None:
    model = tiny_model()
    checkpoint = open_gguf(save_gguf(model, tmp_path / "m.gguf", linears(kind)))
    shape, array = packed(checkpoint, "keep", "layers.1.qkv")
    assert shape.layout == ("q8p16" if kind == TYPES.Q8_0 else "q4p16")
    assert (shape.prompt_class, shape.generated_class) == ("bf16_t32", "int12_g32")
    # Quantising a row does not depend on the others: permuting first or last is the same.
    blocks = gguf.quantize(original_rows(model, 1, "q", "k", "v"), kind)
    found = dequantise(shape.layout, array, shape.n, shape.k)
    assert np.array_equal(found, gguf.dequantize(blocks, kind))
    parts = unpack(shape.layout, array, shape.n, shape.k)
    raw = blocks.reshape(shape.n, shape.k // 32, -1)
    assert parts.scales is not None
    assert np.array_equal(parts.scales, raw[..., :2].copy().view(np.float16)[..., 0])
    if kind == TYPES.Q4_1:
        assert parts.minima is not None
        assert np.array_equal(parts.minima, raw[..., 2:4].copy().view(np.float16)[..., 0])


def test_q4_0_minima_are_minus_eight_scales(tmp_path: Path) -> None:
    checkpoint = open_gguf(save_gguf(tiny_model(), tmp_path / "m.gguf", linears(TYPES.Q4_0)))
    shape, array = packed(checkpoint, "keep", "layers.0.down")
    parts = unpack(shape.layout, array, shape.n, shape.k)
    assert parts.scales is not None and parts.minima is not None
    assert np.array_equal(parts.minima, -8 * parts.scales)


def test_gate_and_up_alternate_in_panels(tmp_path: Path) -> None:
    model = tiny_model(intermediate_size=40, dtype="bf16")
    checkpoint = open_hf(save_hf(model, tmp_path / "model"))
    shape, array = packed(checkpoint, "none", "layers.0.gate_up")
    assert (shape.n, shape.k) == (128, 64)
    gate, up = original_rows(model, 0, "gate"), original_rows(model, 0, "up")
    zeros = np.zeros((24, 64), np.float32)
    gate, up = np.concatenate((gate, zeros)), np.concatenate((up, zeros))
    found = dequantise("bf16p16", array, shape.n, shape.k)
    for panel in range(4):
        rows = slice(16 * panel, 16 * panel + 16)
        assert np.array_equal(found[32 * panel : 32 * panel + 16], gate[rows])
        assert np.array_equal(found[32 * panel + 16 : 32 * panel + 32], up[rows])
    down, array = packed(checkpoint, "none", "layers.0.down")
    assert (down.n, down.k) == (64, 64)
    found = dequantise("bf16p16", array, 64, 64)
    assert np.array_equal(found[:, :40], original_rows(model, 0, "down"))
    assert not found[:, 40:].any()


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_none_rounds_to_bfloat16(dtype: str, tmp_path: Path) -> None:
    model = tiny_model(dtype=dtype)
    checkpoint = open_hf(save_hf(model, tmp_path / "model"))
    shape, array = packed(checkpoint, "none", "layers.1.qkv")
    expected = torch.from_numpy(original_rows(model, 1, "q", "k", "v")).bfloat16().float()
    assert np.array_equal(dequantise("bf16p16", array, shape.n, shape.k), expected.numpy())
    assert (shape.prompt_class, shape.generated_class) == ("bf16_t32", "bf16_t32")
    notes = plan_weights(checkpoint, "none", 64).notes
    assert any("bf16" in note for note in notes) == (dtype != "bf16")


def test_parts_of_different_formats_become_bf16_and_are_named(tmp_path: Path) -> None:
    model = tiny_model()
    types = linears(TYPES.Q4_1, attn_v__weight=TYPES.Q8_0)
    checkpoint = open_gguf(save_gguf(model, tmp_path / "m.gguf", types))
    plan = plan_weights(checkpoint, "keep", 64)
    shape = plan.shapes["layers.0.qkv"]
    assert isinstance(shape, PackedShape) and shape.layout == "bf16p16"
    assert any("Q4_1 and Q8_0" in note and "layers.0.qkv" in note for note in plan.notes)
    found = dequantise("bf16p16", stored_weight(checkpoint, plan, "layers.0.qkv"), 128, 64)  # type: ignore[arg-type]
    tensors = gguf_tensors(model)
    value = gguf.quantize(tensors["blk.0.attn_v.weight"], TYPES.Q8_0)
    expected = torch.from_numpy(gguf.dequantize(value, TYPES.Q8_0)).bfloat16().float().numpy()
    assert np.array_equal(found[96:], expected)
    other = plan.shapes["layers.0.o"]
    assert isinstance(other, PackedShape) and other.layout == "q4p16"


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_quantised_weights_stay_within_half_a_step(
    quantization: Quantization, tmp_path: Path
) -> None:
    model = tiny_model(intermediate_size=40)
    checkpoint = open_hf(save_hf(model, tmp_path / "model"))
    for name, rows in (
        ("layers.0.qkv", original_rows(model, 0, "q", "k", "v")),
        ("layers.0.down", original_rows(model, 0, "down")),
    ):
        shape, array = packed(checkpoint, quantization, name)
        assert shape.layout == {"int8": "q8p16", "int4": "q4p16"}[quantization]
        found = dequantise(shape.layout, array, shape.n, shape.k)[:, : rows.shape[1]]
        scales = unpack(shape.layout, array, shape.n, shape.k).scales
        assert scales is not None
        step = np.repeat(scales.astype(np.float32), 32, axis=1)[:, : rows.shape[1]]
        assert np.all(np.abs(found - rows) <= 0.51 * step + 5e-4)
    head, _ = packed(checkpoint, quantization, "head")
    assert head.layout == "q8p16"
    assert (head.prompt_class, head.generated_class) == ("int12_g32", "int12_g32")


@pytest.mark.parametrize("activations", ["int12", "bf16", "int8"])
def test_activations_are_for_generated_rows_and_the_head(
    tmp_path: Path, activations: Activations
) -> None:
    checkpoint = open_hf(save_hf(tiny_model(), tmp_path / "model"))
    for quantization, expected in (("int4", f"{activations}_g32"), ("none", "bf16_t32")):
        plan = plan_weights(checkpoint, quantization, 64, activations)
        classes = {
            name: (shape.prompt_class, shape.generated_class)
            for name, shape in plan.shapes.items()
            if isinstance(shape, PackedShape)
        }
        assert classes["head"] == classes["embed"] == (expected, expected)
        assert classes["layers.0.qkv"] == ("bf16_t32", expected)


def test_a_width_without_whole_groups_is_kept_in_bf16_and_said(tmp_path: Path) -> None:
    model = tiny_model(hidden_size=48, head_dim=16)
    checkpoint = open_hf(save_hf(model, tmp_path / "model"))
    plan = plan_weights(checkpoint, "int4", 64)
    shapes = {n: s.layout for n, s in plan.shapes.items() if isinstance(s, PackedShape)}
    assert shapes["layers.0.qkv"] == "bf16p16" and shapes["layers.0.down"] == "q4p16"
    assert any("48 columns" in note for note in plan.notes)


def test_the_vocabulary_is_padded_to_whole_panels(tmp_path: Path) -> None:
    model = tiny_model(vocab_size=50)
    checkpoint = open_hf(save_hf(model, tmp_path / "model"))
    shape, array = packed(checkpoint, "int8", "embed")
    assert shape.n == 64
    assert not dequantise("q8p16", array, 64, 64)[50:].any()


def test_biases_follow_the_fused_rows(tmp_path: Path) -> None:
    model = tiny_model(attention_bias=True)
    for checkpoint in (
        open_hf(save_hf(model, tmp_path / "model")),
        open_gguf(save_gguf(model, tmp_path / "m.gguf")),
    ):
        plan = plan_weights(checkpoint, "none", 64)
        state = model.state_dict()
        expected = np.concatenate(
            [state[f"model.layers.1.self_attn.{part}_proj.bias"].numpy() for part in "qkv"]
        )
        assert np.array_equal(stored_weight(checkpoint, plan, "layers.1.qkv_bias"), expected)
        bias = state["model.layers.1.self_attn.o_proj.bias"].numpy()
        assert np.array_equal(stored_weight(checkpoint, plan, "layers.1.o_bias"), bias)


def test_quantisation_of_extreme_groups() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(4, 96)).astype(np.float32)
    values[0, :32] = 0
    values[1, :32] = 3.25
    values[2, :32] *= 1e-9
    values[3, 32:64] = np.linspace(-1e4, 1e4, 32)
    eight = quantize_eight_bit("w", values)
    assert eight.codes.min() >= -127
    assert not eight.codes[0, :32].any() and not eight.codes[2, :32].any()
    exact = formats.expand(eight.codes.astype(np.float32), eight.scales)
    assert abs(exact[1, 0] - 3.25) < 0.02
    four = quantize_four_bit("w", values)
    found = formats.expand(four.codes.astype(np.float32), four.scales, four.minima)
    assert not found[0, :32].any() and found[1, 5] == 3.25
    assert np.abs(found[3, 32:64] - values[3, 32:64]).max() < 2e4 / 15 * 0.51 + 5
    with pytest.raises(CheckpointError, match="'w'"):
        quantize_eight_bit("w", values * np.float32(1e6))


def test_rounding_is_half_to_even() -> None:
    values = np.zeros((1, 32), np.float32)
    values[0, :5] = [127, 0.5, 1.5, 2.5, -0.5]
    eight = quantize_eight_bit("w", values)
    assert eight.scales[0, 0] == 1
    assert eight.codes[0, :5].tolist() == [127, 0, 2, 2, 0]
