"""The reference device: runs any program with torch float32 ops on the CPU."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from engine.core.schema import Graph, ModelSpec
from engine.device.base import InputBuffers
from engine.device.reference.executable import ReferenceExecutable, State
from engine.device.reference.sampler import ReferenceSampler
from engine.ir.program import Domain, Program


class ReferenceDevice:
    """Implements ``engine.device.base.Device`` as an oracle: exact, slow, no packed kernels.

    weights: storage tensors by name, as a core maps them. num_blocks: blocks of the KV pool.
    max_blocks: blocks per sequence in the block tables.
    """

    def __init__(
        self,
        model: ModelSpec,
        capacity: Domain,
        weights: Mapping[str, NDArray[np.generic]],
        num_blocks: int,
        max_blocks: int,
        sampler_slots: int,
    ) -> None:
        kv = model.kv
        shape = (kv.layers, num_blocks * kv.block_size, 2, kv.kv_heads, kv.head_dim)
        self._state = State(
            _input_buffers(capacity, max_blocks),
            weights,
            torch.zeros(shape, dtype=torch.bfloat16),
            kv.block_size,
            np.zeros((0, model.logits_width), np.float32),
            {},
        )
        self._sampler = ReferenceSampler(model.vocab_size, sampler_slots, lambda: self.logits)

    @property
    def inputs(self) -> InputBuffers:
        return self._state.inputs

    @property
    def sampler(self) -> ReferenceSampler:
        return self._sampler

    @property
    def logits(self) -> NDArray[np.float32]:
        """Logits rows of the last replay: [rows, logits_width]."""
        return self._state.logits

    def instantiate(self, graph: Graph, program: Program) -> ReferenceExecutable:
        """Return an executable that shares this device's inputs, cache and logits."""
        return ReferenceExecutable(program, self._state)

    def hold(self, weights: Mapping[str, NDArray[np.generic]]) -> None:
        """Take these storage tensors in, beside those that are held."""
        self._state.weights = {**self._state.weights, **weights}

    def keep(self, names: Collection[str]) -> None:
        """Let go of the storage tensors not named, and of all that were dequantised."""
        held = self._state.weights
        self._state.weights = {name: held[name] for name in held if name in names}
        self._state.dense.clear()

    def scrub(self, blocks: Sequence[int]) -> None:
        """Zero these cache blocks in all layers."""
        cache, size = self._state.cache, self._state.block_size
        for block in blocks:
            cache[:, block * size : (block + 1) * size] = 0


def _input_buffers(capacity: Domain, max_blocks: int) -> InputBuffers:
    def zeros(*shape: int) -> NDArray[np.int32]:
        return np.zeros(shape, np.int32)

    return InputBuffers(
        token_ids=zeros(capacity.tokens),
        positions=zeros(capacity.tokens),
        slots=zeros(capacity.tokens),
        seg_starts=zeros(capacity.seqs + 1),
        seq_lens=zeros(capacity.seqs),
        block_tables=zeros(capacity.seqs, max_blocks),
        logit_rows=zeros(capacity.logits),
    )
