"""Fill the device's input buffers for one launch."""

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from engine.batch.plan import Launch
from engine.device.base import BatchShape, InputBuffers
from engine.runtime.tables import SlotTables

I32 = NDArray[np.int32]


class Rows(Struct, frozen=True):
    """Where the segments of a launch lie, per segment.

    ends: starts + counts. first_rows: row of the launch, one entry more than segments. logits:
    how many logits rows; last_logits: the last of them (of an earlier segment where it has none).
    """

    slots: I32
    starts: I32
    counts: I32
    ends: I32
    first_rows: I32
    logits: I32
    last_logits: I32


def rows_of(launch: Launch) -> Rows:
    """Lay the segments of a launch out."""
    segments = launch.segments
    slots = np.array([s.sequence.slot for s in segments], np.int32)
    starts = np.array([s.start for s in segments], np.int32)
    if launch.tokens == launch.logits == len(segments):  # decode rows alone
        ones, rows = np.ones_like(slots), np.arange(len(slots) + 1, dtype=np.int32)
        return Rows(slots, starts, ones, starts + 1, rows, ones, rows[:-1])
    counts = np.array([s.count for s in segments], np.int32)
    logits = np.array([s.logits for s in segments], np.int32)
    first_rows = np.zeros(len(slots) + 1, np.int32)
    np.cumsum(counts, out=first_rows[1:])
    last_logits = np.cumsum(logits, dtype=np.int32) - 1
    return Rows(slots, starts, counts, starts + counts, first_rows, logits, last_logits)


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
    inputs.logit_rows[: launch.logits] = (
        rows.last_logits if tokens == seqs == launch.logits else _logit_rows(launch, rows)
    )
    return BatchShape(
        tokens,
        seqs,
        launch.logits,
        launch.generated_tokens,
        launch.generated_segments,
        launch.generated_logits,
    )


def _logit_rows(launch: Launch, rows: Rows) -> I32:
    """Rows of the launch whose logits are wanted: the last ones of each segment."""
    shift = rows.first_rows[1:] - 1 - rows.last_logits
    return np.arange(launch.logits, dtype=np.int32) + np.repeat(shift, rows.logits)
