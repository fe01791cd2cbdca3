"""Run token rows straight through a device and read every row's logits (parity tests)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engine.core.reader import Core
from engine.core.schema import Graph, Kind
from engine.device.base import BatchShape, Device, Executable


class LogitsDevice(Device, Protocol):
    """A device whose logits can be read: [rows of the last replay, logits_width]."""

    @property
    def logits(self) -> NDArray[np.float32]: ...


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows [start, stop) of a sequence, all of one role."""

    start: int
    stop: int
    generated: bool


def chunks(length: int, generated_from: int, size: int) -> Iterator[Chunk]:
    """Cut a sequence into chunks of at most ``size`` rows that do not cross the role border."""
    start = 0
    while start < length:
        border = generated_from if start < generated_from else length
        stop = min(start + size, border)
        yield Chunk(start, stop, start >= generated_from)
        start = stop


class DirectRunner:
    """One sequence at a time, from block 0 on, through the core's largest prefill graph."""

    def __init__(self, core: Core, device: LogitsDevice) -> None:
        catalog = core.manifest.catalog
        prefill = [g for g in catalog.graphs if g.kind is Kind.PREFILL]
        graph: Graph = max(prefill, key=lambda g: g.domain.tokens)
        self._block = core.manifest.model.kv.block_size
        self._vocab = core.manifest.model.vocab_size
        self._size = min(graph.domain.tokens, graph.domain.logits)
        self._device = device
        self._executable: Executable = device.instantiate(graph, catalog.programs[graph.program])

    def logits(self, ids: list[int], generated_from: int | None = None) -> NDArray[np.float32]:
        """Return the logits [len(ids), vocab]; rows from ``generated_from`` on have that role."""
        border = len(ids) if generated_from is None else generated_from
        parts = [self._run(ids, chunk) for chunk in chunks(len(ids), border, self._size)]
        return np.concatenate(parts)

    def _run(self, ids: list[int], chunk: Chunk) -> NDArray[np.float32]:
        rows = chunk.stop - chunk.start
        inputs = self._device.inputs
        inputs.token_ids[:rows] = ids[chunk.start : chunk.stop]
        inputs.positions[:rows] = np.arange(chunk.start, chunk.stop)
        inputs.slots[:rows] = inputs.positions[:rows]  # block b is physical block b
        inputs.seg_starts[:2] = (0, rows)
        inputs.seq_lens[0] = chunk.stop
        blocks = -(-chunk.stop // self._block)
        inputs.block_tables[0, :blocks] = np.arange(blocks)
        inputs.logit_rows[:rows] = np.arange(rows)
        done = (rows, 1, rows) if chunk.generated else (0, 0, 0)
        self._executable.replay(BatchShape(rows, 1, rows, *done))
        return self._device.logits[:rows, : self._vocab].copy()


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Row-wise log-softmax in float64."""
    wide = logits.astype(np.float64)
    shifted = wide - wide.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


@dataclass(frozen=True, slots=True)
class Agreement:
    """How one set of next-token distributions agrees with a reference. kl: mean, in nats."""

    rows: int
    kl: float
    top1: float


def agreement(
    reference: Mapping[int, NDArray[np.float32]], found: Mapping[int, NDArray[np.float32]]
) -> Agreement:
    """Mean KL(reference || found) and top-1 agreement over all rows of all prompts."""
    kl_sum, same, rows = 0.0, 0, 0
    for key, expected in reference.items():
        p, q = log_softmax(expected), log_softmax(found[key])
        kl_sum += float((np.exp(p) * (p - q)).sum())
        same += int((p.argmax(axis=-1) == q.argmax(axis=-1)).sum())
        rows += len(p)
    return Agreement(rows, kl_sum / rows, same / rows)
