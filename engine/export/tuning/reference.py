"""Outputs of the torch reference ops on the bench's operands: what tuned kernels must be close to.

Imported by profile ``audit`` alone: it needs torch.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.device.reference import ops
from engine.export.tuning.questions import Batch
from engine.export.tuning.rig import Rig, rows_of, shape_of
from engine.ir.program import Launch, Program
from engine.kernels.layouts import dequantise

F32 = NDArray[np.float32]


def reference_output(rig: Rig, program: Program, batch: Batch) -> F32 | None:
    """Return the first launch's output rows, from the values in the arena and the inputs.

    None for ops whose output is a rotation or a copy of stored values: they have no sums to round.
    """
    launch = program.launches[0]
    compute = _REFERENCE.get(launch.op)
    return None if compute is None else compute(rig, program, launch, batch)


def _linear(rig: Rig, program: Program, launch: Launch, batch: Batch) -> F32:
    attrs = launch.attrs
    x, weight, *rest = launch.inputs
    packed = rig.weights[weight]
    if "prompt_layout" in attrs:
        rest.pop(0)  # the same weight in another layout
    dense = dequantise(str(attrs["layout"]), packed, int(attrs["n"]), int(attrs["k"]))
    bias = _tensor(_plain(rig, rest.pop(0))) if attrs["bias"] else None
    residual = _tensor(rows_of(rig, program, rest.pop(0), batch)) if attrs["residual"] else None
    values = _tensor(rows_of(rig, program, x, batch))
    y = ops.linear(values, _tensor(dense), bias, residual, str(attrs["activation"]))
    return y.numpy()


def _rms_norm(rig: Rig, program: Program, launch: Launch, batch: Batch) -> F32:
    x, weight = launch.inputs
    values = _tensor(rows_of(rig, program, x, batch))
    y = ops.rms_norm(values, _tensor(_plain(rig, weight)), float(launch.attrs["eps"]))
    return y.numpy()


def _attention(rig: Rig, program: Program, launch: Launch, batch: Batch) -> F32:
    attrs, c, shape = launch.attrs, rig.context, shape_of(program.domain, batch)
    q = _tensor(rows_of(rig, program, launch.inputs[0], batch))
    tables = torch.from_numpy(c.block_tables[: shape.seqs].astype(np.int64))
    size = rig.model.kv.block_size
    slots = tuple((table[:, None] * size + torch.arange(size)).reshape(-1) for table in tables)
    y = ops.paged_attention(
        q.reshape(shape.tokens, int(attrs["heads"]), int(attrs["head_dim"])),
        _cache(rig, int(attrs["layer"])),
        torch.from_numpy(c.positions[: shape.tokens].astype(np.int64)),
        c.seg_starts[: shape.seqs + 1].tolist(),
        c.seq_lens[: shape.seqs].tolist(),
        slots,
        float(attrs["scale"]),
    )
    return y.reshape(shape.tokens, -1).numpy()


def _cache(rig: Rig, layer: int) -> Tensor:
    """A layer's cache (KVLayout) as bfloat16 [slots, 2 (key, value), kv_heads, head_dim]."""
    kv = rig.model.kv
    bits = rig.context.kv_cache.view(np.uint16).reshape(
        kv.layers, -1, kv.kv_heads, 2, kv.padded_dim * kv.block_size
    )[layer]
    keys = bits[:, :, 0].reshape(-1, kv.kv_heads, kv.padded_dim // 2, kv.block_size, 2)
    values = bits[:, :, 1].reshape(-1, kv.kv_heads, kv.block_size // 2, kv.padded_dim, 2)
    both = (
        keys.transpose(0, 3, 1, 2, 4),  # [block, token, head, pair of dimensions, 2]
        values.transpose(0, 2, 4, 1, 3),  # [block, pair of tokens, 2, head, dimension]
    )
    dense = [part.reshape(-1, kv.kv_heads, kv.padded_dim)[..., : kv.head_dim] for part in both]
    return torch.from_numpy(np.stack(dense, 1).view(np.int16)).view(torch.bfloat16)


def _plain(rig: Rig, name: str) -> F32:
    return rig.weights[name].view(np.float32)


def _tensor(values: F32) -> Tensor:
    return torch.from_numpy(np.array(values, np.float32))


_REFERENCE: Mapping[str, Callable[[Rig, Program, Launch, Batch], F32]] = MappingProxyType(
    {"linear": _linear, "rms_norm": _rms_norm, "paged_attention": _attention}
)
