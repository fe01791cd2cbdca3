"""Single launches of an exported core on the reference device, with inputs filled by hand."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.core.reader import open_core
from engine.device.base import BatchShape, capacity_of
from engine.device.reference.device import ReferenceDevice

BLOCK = 64
MAX_BLOCKS = 3
WANTED = 24
"""Logits rows that are compared per segment, at most."""


@dataclass(frozen=True)
class Segment:
    """Rows ``tokens`` of sequence ``seq`` from position ``start``; logits of the last ones."""

    seq: int
    tokens: list[int]
    start: int = 0
    generated: bool = False

    @property
    def wanted(self) -> int:
        return min(WANTED, len(self.tokens))


class Runner:
    """Fills the inputs of one launch and returns its logits. Sequences have scattered blocks."""

    def __init__(self, path: Path) -> None:
        core = open_core(path)
        manifest = core.manifest
        self.model = manifest.model
        self.catalog = manifest.catalog
        weights = {t.name: core.tensor(t.name) for t in manifest.catalog.storage}
        self.device = ReferenceDevice(
            manifest.model, capacity_of(manifest.catalog.graphs), weights, 9, MAX_BLOCKS, 4
        )
        self.tables = np.array([[7, 2, 5], [0, 8, 3]], np.int32)

    def run(self, graph_id: str, segments: list[Segment]) -> list[NDArray[np.float32]]:
        """Launch the segments (generated ones first); per segment, its logits."""
        inputs, row, logit = self.device.inputs, 0, 0
        for index, segment in enumerate(segments):
            count = len(segment.tokens)
            positions = np.arange(segment.start, segment.start + count)
            rows = slice(row, row + count)
            table = self.tables[segment.seq]
            inputs.token_ids[rows] = segment.tokens
            inputs.positions[rows] = positions
            inputs.slots[rows] = table[positions // BLOCK] * BLOCK + positions % BLOCK
            inputs.seg_starts[index : index + 2] = row, row + count
            inputs.seq_lens[index] = segment.start + count
            inputs.block_tables[index] = table
            row += count
            wanted = np.arange(row - segment.wanted, row)
            inputs.logit_rows[logit : logit + segment.wanted] = wanted
            logit += segment.wanted
        ahead = [segment for segment in segments if segment.generated]
        generated = sum(len(segment.tokens) for segment in ahead)
        shape = BatchShape(row, len(segments), logit, generated, len(ahead), generated)
        graph = next(graph for graph in self.catalog.graphs if graph.id == graph_id)
        self.device.instantiate(graph, self.catalog.programs[graph.program]).replay(shape)
        logits = self.device.logits.copy()
        assert logits.shape == (logit, self.model.logits_width)
        assert not logits[:, self.model.vocab_size :].any()
        bounds = np.cumsum([segment.wanted for segment in segments])[:-1]
        return np.split(logits[:, : self.model.vocab_size], bounds)
