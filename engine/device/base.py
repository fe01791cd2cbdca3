"""The device interface: what serving asks of a device, CPU or CUDA or a test double."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from engine.core.schema import Graph
from engine.ir.program import Domain, Program
from engine.types import SamplingParams

I32 = NDArray[np.int32]
INVALID = -1
"""The token of a row whose logits are not finite, or that leaves no id to draw."""


class BatchShape(Struct, frozen=True):
    """Rows present in one replay. Generated-role rows, segments and logits come first."""

    tokens: int
    seqs: int
    logits: int
    generated_tokens: int
    generated_seqs: int
    generated_logits: int


class InputBuffers(Struct, frozen=True):
    """Host views of the program inputs (engine/ir/ops.py INPUTS), at full capacity.

    seg_starts has one entry more than segments; block_tables is [segments, blocks per sequence].
    The same buffers feed every executable of the device.
    """

    token_ids: I32
    positions: I32
    slots: I32
    seg_starts: I32
    seq_lens: I32
    block_tables: I32
    logit_rows: I32


class SampleBatch(Struct, frozen=True):
    """Arguments of one sampling call over the last replay's logits rows, as host arrays.

    rows: which logits rows to draw from; slots: the sampler slot of each; positions: absolute
    position of the token to draw; forbid_stop: min_tokens not reached; top_n: alternatives wanted,
    -1 for no log probabilities. masks: [n, ceil(vocab / 32)] words, a bit per id that may be drawn,
    lowest bit first; mask_rows: the row of each entry, -1 for none. Both or neither are given.
    """

    rows: I32
    slots: I32
    positions: I32
    forbid_stop: NDArray[np.uint8]
    top_n: I32
    masks: NDArray[np.uint32] | None = None
    mask_rows: I32 | None = None


class Samples(Struct, frozen=True):
    """tokens[i] (or INVALID), logprobs[i] and [i, MAX_LOGPROBS] alternatives; log probabilities
    only where asked."""

    tokens: I32
    logprobs: NDArray[np.float32]
    top_ids: I32
    top_logprobs: NDArray[np.float32]


class Executable(Protocol):
    """A program instantiated on a device."""

    def replay(self, shape: BatchShape) -> None:
        """Run on the rows in the device's input buffers. Releases the GIL; blocks until done."""
        ...


class DeviceSampler(Protocol):
    """Sampling state per slot, kept where the logits are."""

    def set(
        self,
        slot: int,
        params: SamplingParams,
        stop_ids: Sequence[int],
        prompt_ids: Sequence[int],
        output_ids: Sequence[int],
    ) -> None: ...

    def clear(self, slot: int) -> None: ...

    def rewind(self, slot: int, count: int) -> None:
        """Take back the last ``count`` drawn tokens of a slot's history (rejected drafts)."""
        ...

    def sample(self, batch: SampleBatch) -> Samples:
        """Draw a token per entry; entries of one slot are adjacent, each after the one before."""
        ...

    def score(self, rows: I32, targets: I32, top_n: I32) -> Samples:
        """Log probabilities of ``targets`` at these logits rows of the last replay."""
        ...


class Device(Protocol):
    """One rank's device, with its state allocated (arena, KV pool, inputs)."""

    @property
    def inputs(self) -> InputBuffers: ...

    @property
    def sampler(self) -> DeviceSampler: ...

    @property
    def logits(self) -> NDArray[np.float32]:
        """Logits rows of the last replay: [rows, logits_width], valid until the next one."""
        ...

    def instantiate(self, graph: Graph, program: Program) -> Executable: ...

    def hold(self, weights: Mapping[str, NDArray[np.generic]]) -> None:
        """Take these storage tensors in, beside those that are held."""
        ...

    def keep(self, names: Collection[str]) -> None:
        """Let go of the storage tensors not named, and of what instantiating left behind."""
        ...

    def scrub(self, blocks: Sequence[int]) -> None:
        """Zero these cache blocks in all layers (their content was not finite)."""
        ...


def capacity_of(graphs: Iterable[Graph]) -> Domain:
    """Return the largest batch of any of the graphs: what a device's inputs must hold."""
    domains = [graph.domain for graph in graphs]
    return Domain(
        max(domain.tokens for domain in domains),
        max(domain.seqs for domain in domains),
        max(domain.logits for domain in domains),
    )
