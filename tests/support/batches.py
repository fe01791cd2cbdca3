"""Runs batches of a synthetic core on a device, below the engine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from msgspec.structs import fields
from numpy.typing import NDArray

from engine.core.reader import open_core
from engine.core.schema import Catalog, ModelSpec
from engine.device.base import BatchShape, Device, Executable, capacity_of
from engine.device.reference.device import ReferenceDevice

BLOCK = 64


@dataclass(frozen=True)
class Part:
    """A segment to run: tokens from ``start`` of a sequence whose blocks are ``blocks``.

    wanted: logits of that many last rows; None: of every row.
    """

    tokens: tuple[int, ...]
    start: int
    blocks: tuple[int, ...]
    generated: bool = False
    wanted: int | None = None

    @property
    def logits(self) -> int:
        return len(self.tokens) if self.wanted is None else min(self.wanted, len(self.tokens))


class BatchRunner:
    """Fills a device's inputs and replays one graph."""

    def __init__(self, device: Device, catalog: Catalog) -> None:
        self.device = device
        self.executables: Mapping[str, Executable] = {
            graph.id: device.instantiate(graph, catalog.programs[graph.program])
            for graph in catalog.graphs
        }

    def spoil_inputs(self) -> None:
        """Fill every input with -1: what a launch does not set must not be used."""
        for field in fields(self.device.inputs):
            getattr(self.device.inputs, field.name).fill(-1)

    def run(self, graph: str, parts: Sequence[Part]) -> NDArray[np.float32]:
        """Return the wanted logits rows of all parts. Generated parts come first."""
        inputs = self.device.inputs
        row = logit = 0
        for s, part in enumerate(parts):
            inputs.seg_starts[s] = row
            inputs.seq_lens[s] = part.start + len(part.tokens)
            inputs.block_tables[s, : len(part.blocks)] = part.blocks
            for position, token in enumerate(part.tokens, part.start):
                inputs.token_ids[row] = token
                inputs.positions[row] = position
                inputs.slots[row] = part.blocks[position // BLOCK] * BLOCK + position % BLOCK
                row += 1
            inputs.logit_rows[logit : logit + part.logits] = range(row - part.logits, row)
            logit += part.logits
        inputs.seg_starts[len(parts)] = row
        generated = [part for part in parts if part.generated]
        first = sum(len(part.tokens) for part in generated), len(generated)
        shape = BatchShape(row, len(parts), logit, *first, sum(part.logits for part in generated))
        self.executables[graph].replay(shape)
        logits: NDArray[np.float32] = self.device.logits  # type: ignore[attr-defined]
        return logits[:logit].copy()


def reference_runner(path: Path) -> tuple[BatchRunner, ModelSpec]:
    """Return a runner of a core's graphs on the reference device, and the model's sizes."""
    core = open_core(path)
    model, catalog = core.manifest.model, core.manifest.catalog
    weights = {tensor.name: core.tensor(tensor.name) for tensor in catalog.storage}
    device = ReferenceDevice(model, capacity_of(catalog.graphs), weights, 9, 3, 4)
    return BatchRunner(device, catalog), model
