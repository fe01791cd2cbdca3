"""Fill the device's input buffers for one launch."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.batch.plan import Launch
from engine.device.base import BatchShape, InputBuffers
from engine.runtime.tables import SlotTables

I32 = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Rows:
    """Where the segments of a launch lie: per segment slot, first position and first row."""

    slots: I32
    starts: I32
    counts: I32
    first_rows: I32  # one entry more than segments

    @property
    def ends(self) -> I32:
        return self.starts + self.counts


def rows_of(launch: Launch) -> Rows:
    """Lay the segments of a launch out."""
    segments = launch.segments
    table = np.array([(s.sequence.slot, s.start, s.count) for s in segments], np.int32)
    first_rows = np.zeros(len(segments) + 1, np.int32)
    np.cumsum(table[:, 2], out=first_rows[1:])
    return Rows(table[:, 0], table[:, 1], table[:, 2], first_rows)


def fill(inputs: InputBuffers, tables: SlotTables, launch: Launch, rows: Rows) -> BatchShape:
    """Fill every input that the launch's rows, segments and logits rows read."""
    tokens, seqs = launch.tokens, len(launch.segments)
    if tokens == seqs:  # decode rows alone: one row per segment
        slots, positions = rows.slots, rows.starts
    else:
        segment = np.repeat(np.arange(seqs, dtype=np.int32), rows.counts)
        offsets = np.arange(tokens, dtype=np.int32) - rows.first_rows[segment]
        slots, positions = rows.slots[segment], rows.starts[segment] + offsets
    size = tables.block_size
    inputs.token_ids[:tokens] = tables.tokens[slots, positions]
    inputs.positions[:tokens] = positions
    inputs.slots[:tokens] = tables.blocks[slots, positions // size] * size + positions % size
    inputs.seg_starts[: seqs + 1] = rows.first_rows
    inputs.seq_lens[:seqs] = rows.ends
    width = int(-(-rows.ends.max() // size))
    inputs.block_tables[:seqs, :width] = tables.blocks[rows.slots, :width]
    inputs.logit_rows[: launch.logits] = _logit_rows(launch, rows)
    return BatchShape(
        tokens,
        seqs,
        launch.logits,
        launch.generated_tokens,
        launch.generated_segments,
        launch.generated_logits,
    )


def _logit_rows(launch: Launch, rows: Rows) -> I32:
    """The last ``segment.logits`` rows of each segment."""
    lasts = rows.first_rows[1:]
    if launch.logits == len(launch.segments) == launch.tokens:
        return lasts - 1
    counts = np.array([s.logits for s in launch.segments], np.int32)
    ends = np.cumsum(counts, dtype=np.int32)
    return np.arange(launch.logits, dtype=np.int32) + np.repeat(lasts - ends, counts)
