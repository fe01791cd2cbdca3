"""Runs batches of a synthetic core on a device, below the engine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from engine.core.schema import Catalog
from engine.device.base import BatchShape, Device, Executable

BLOCK = 64


@dataclass(frozen=True)
class Part:
    """A segment to run: tokens from ``start`` of a sequence whose blocks are ``blocks``."""

    tokens: tuple[int, ...]
    start: int
    blocks: tuple[int, ...]
    generated: bool = False


class BatchRunner:
    """Fills a device's inputs and replays one graph; every row's logits are wanted."""

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
        """Return the logits of every row. Generated parts come first."""
        inputs = self.device.inputs
        row = 0
        for s, part in enumerate(parts):
            inputs.seg_starts[s] = row
            inputs.seq_lens[s] = part.start + len(part.tokens)
            inputs.block_tables[s, : len(part.blocks)] = part.blocks
            for position, token in enumerate(part.tokens, part.start):
                inputs.token_ids[row] = token
                inputs.positions[row] = position
                inputs.slots[row] = part.blocks[position // BLOCK] * BLOCK + position % BLOCK
                inputs.logit_rows[row] = row
                row += 1
        inputs.seg_starts[len(parts)] = row
        generated = [part for part in parts if part.generated]
        rows = sum(len(part.tokens) for part in generated)
        shape = BatchShape(row, len(parts), row, rows, len(generated), rows)
        self.executables[graph].replay(shape)
        logits: NDArray[np.float32] = self.device.logits  # type: ignore[attr-defined]
        return logits[:row].copy()
