"""Interprets a program launch by launch with the reference ops."""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from msgspec import Struct
from numpy.typing import NDArray
from torch import Tensor

from engine.device.base import BatchShape, InputBuffers
from engine.device.reference import ops
from engine.errors import DeviceError
from engine.ir.program import Attr, Domain, Launch, Program, Space
from engine.kernels.layouts import dequantise


class State(Struct):
    """What all executables of a device share. Owned by the device.

    cache: bfloat16 [layers, slots, 2 (key, value), kv_heads, head_dim]. logits: float32
    [rows, width] of the last replay. dense: weights dequantised so far, by name.
    """

    inputs: InputBuffers
    weights: Mapping[str, NDArray[np.generic]]
    cache: Tensor
    block_size: int
    logits: NDArray[np.float32]
    dense: dict[str, Tensor]


class Rows(Struct, frozen=True):
    """The rows of one replay, as tensors: the program's inputs, cut to what is present."""

    shape: BatchShape
    inputs: Mapping[str, Tensor]
    key_slots: tuple[Tensor, ...]  # per segment


class ReferenceExecutable:
    """A program on the reference device. Values live in a dict; the arena is not used."""

    def __init__(self, program: Program, state: State) -> None:
        self._program = program
        self._state = state
        for launch in program.launches:
            if launch.op not in _RUN:
                raise DeviceError(f"the reference device has no op {launch.op!r}")
        self._output = next(
            buffer.name for buffer in program.buffers.values() if buffer.space is Space.OUTPUT
        )

    @torch.inference_mode()
    def replay(self, shape: BatchShape) -> None:
        """Run every launch on the rows present. Raises ValueError beyond the capacity."""
        check_shape(shape, self._program.domain)
        rows = _rows(shape, self._state)
        values: dict[str, Tensor] = dict(rows.inputs)
        for launch in self._program.launches:
            values[launch.outputs[0]] = _RUN[launch.op](launch, values, rows, self._state)
        self._state.logits = values[self._output].numpy()


def check_shape(shape: BatchShape, domain: Domain) -> None:
    """Raise ValueError for a batch that lies outside the domain or contradicts itself."""
    counts = (
        ("tokens", shape.tokens, domain.tokens, shape.generated_tokens),
        ("seqs", shape.seqs, domain.seqs, shape.generated_seqs),
        ("logits", shape.logits, domain.logits, shape.generated_logits),
    )
    for name, count, capacity, generated in counts:
        if not (0 <= generated <= count <= capacity):
            raise ValueError(
                f"{name}: {count} present, {generated} generated, the capacity is {capacity}"
            )


def _rows(shape: BatchShape, state: State) -> Rows:
    host = state.inputs
    lengths = {
        "token_ids": shape.tokens,
        "positions": shape.tokens,
        "slots": shape.tokens,
        "seg_starts": shape.seqs + 1,
        "seq_lens": shape.seqs,
        "block_tables": shape.seqs,
        "logit_rows": shape.logits,
    }
    inputs = {
        name: torch.from_numpy(getattr(host, name)[:length].astype(np.int64))
        for name, length in lengths.items()
    }
    within = torch.arange(state.block_size)
    key_slots = tuple(
        (table[:, None] * state.block_size + within).reshape(-1) for table in inputs["block_tables"]
    )
    return Rows(shape, inputs, key_slots)


def _dense(name: str, attrs: Mapping[str, Attr], n: str, k: str, state: State) -> Tensor:
    """Return a packed weight as float32 [n, k], dequantised at its first use."""
    key = f"{name} {attrs[n]}"
    if key not in state.dense:
        packed = state.weights[name].reshape(-1).view(np.uint8)
        values = dequantise(str(attrs["layout"]), packed, int(attrs[n]), int(attrs[k]))
        state.dense[key] = torch.from_numpy(np.ascontiguousarray(values))
    return state.dense[key]


def _plain(name: str, state: State) -> Tensor:
    if name not in state.dense:
        state.dense[name] = torch.from_numpy(np.array(state.weights[name], np.float32))
    return state.dense[name]


def _embed(launch: Launch, values: dict[str, Tensor], rows: Rows, state: State) -> Tensor:
    weight = _dense(launch.inputs[1], launch.attrs, "vocab", "width", state)
    return ops.embed(values["token_ids"], weight)


def _rms_norm(launch: Launch, values: dict[str, Tensor], rows: Rows, state: State) -> Tensor:
    x, weight = launch.inputs
    return ops.rms_norm(values[x], _plain(weight, state), float(launch.attrs["eps"]))


def _linear(launch: Launch, values: dict[str, Tensor], rows: Rows, state: State) -> Tensor:
    x, weight, *rest = launch.inputs
    attrs = launch.attrs
    if "prompt_layout" in attrs:
        rest.pop(0)  # the same weight in another layout
    bias = _plain(rest.pop(0), state) if attrs["bias"] else None
    residual = values[rest.pop(0)] if attrs["residual"] else None
    dense = _dense(weight, attrs, "n", "k", state)
    return ops.linear(values[x], dense, bias, residual, str(attrs["activation"]))


def _rope_store_kv(launch: Launch, values: dict[str, Tensor], rows: Rows, state: State) -> Tensor:
    attrs = launch.attrs
    rope = _plain(launch.inputs[1], state)[values["positions"]]
    heads, kv_heads = int(attrs["heads"]), int(attrs["kv_heads"])
    q, k, v = ops.split_rotate(values[launch.inputs[0]], rope, heads, kv_heads)
    cache = state.cache[int(attrs["layer"])]
    cache[values["slots"]] = torch.stack((k, v), dim=1).to(cache.dtype)
    return q.reshape(q.shape[0], -1)


def _paged_attention(launch: Launch, values: dict[str, Tensor], rows: Rows, state: State) -> Tensor:
    attrs = launch.attrs
    q = values[launch.inputs[0]]
    y = ops.paged_attention(
        q.reshape(q.shape[0], int(attrs["heads"]), int(attrs["head_dim"])),
        state.cache[int(attrs["layer"])],
        values["positions"],
        values["seg_starts"].tolist(),
        values["seq_lens"].tolist(),
        rows.key_slots,
        float(attrs["scale"]),
    )
    return y.reshape(q.shape[0], -1)


def _gather_rows(launch: Launch, values: dict[str, Tensor], rows: Rows, state: State) -> Tensor:
    return values[launch.inputs[0]][values["logit_rows"]]


_RUN: Mapping[str, Callable[[Launch, dict[str, Tensor], Rows, State], Tensor]] = {
    "embed": _embed,
    "rms_norm": _rms_norm,
    "linear": _linear,
    "rope_store_kv": _rope_store_kv,
    "paged_attention": _paged_attention,
    "gather_rows": _gather_rows,
}
