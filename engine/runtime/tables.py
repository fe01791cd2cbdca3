"""Per-slot tables that persist between steps, so that a decode step fills inputs without loops."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from engine.cache.pool import NULL_BLOCK
from engine.schedule.output import Segment
from engine.schedule.sequence import Sequence

NO_LOGPROBS = -1


class SlotTables:
    """Token ids and block ids of the sequences that hold a slot, as int32 arrays by slot.

    tokens: [slots, max_model_len]. blocks: [slots, blocks per sequence]; entries beyond a
    sequence's blocks are the null block. top_n: alternatives wanted per token, -1 for no log
    probabilities. stops_from: first position that may hold an end token (min_tokens).
    """

    def __init__(self, slots: int, max_model_len: int, block_size: int) -> None:
        self.tokens: NDArray[np.int32] = np.zeros((slots, max_model_len), np.int32)
        width = -(-max_model_len // block_size)
        self.blocks: NDArray[np.int32] = np.full((slots, width), NULL_BLOCK, np.int32)
        self.top_n: NDArray[np.int32] = np.full(slots, NO_LOGPROBS, np.int32)
        self.stops_from: NDArray[np.int32] = np.zeros(slots, np.int32)
        self.block_size = block_size
        self._filled = [0] * slots

    def start(self, sequence: Sequence) -> None:
        """Write what is known of a sequence that just got its slot."""
        sampling = sequence.request.sampling
        slot, prompt = sequence.slot, sequence.prompt_len
        self.tokens[slot, :prompt] = sequence.prompt
        self.tokens[slot, prompt : sequence.known] = sequence.output
        self.top_n[slot] = NO_LOGPROBS if sampling.logprobs is None else sampling.logprobs
        self.stops_from[slot] = prompt + sampling.min_tokens

    def draft(self, segments: Iterable[Segment]) -> None:
        """Write the drafts behind what is known; what is drawn there replaces them."""
        for segment in segments:
            if segment.drafts:
                self.tokens[segment.sequence.slot, segment.start + 1 : segment.end] = segment.drafts

    def stop(self, slot: int) -> None:
        """Forget the blocks of a slot that was given up."""
        self.blocks[slot] = NULL_BLOCK
        self._filled[slot] = 0

    def sync(self, sequences: Iterable[Sequence]) -> None:
        """Copy the blocks that sequences got since the last step."""
        for sequence in sequences:
            slot, blocks = sequence.slot, sequence.table.blocks
            filled = self._filled[slot]
            if filled < len(blocks):
                self.blocks[slot, filled : len(blocks)] = blocks[filled:]
                self._filled[slot] = len(blocks)
