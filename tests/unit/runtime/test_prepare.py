"""Input buffers: what a launch's rows, segments and logits rows read, element by element."""

import numpy as np

from engine.batch.plan import Launch
from engine.cache.kv import BlockTable
from engine.core.schema import Kind
from engine.device.base import BatchShape
from engine.ir.program import Domain
from engine.runtime.prepare import fill, rows_of
from engine.runtime.tables import SlotTables
from engine.schedule.output import Segment
from engine.schedule.sequence import Sequence
from engine.types import GenerationRequest, SamplingParams
from tests.support.scripted import _inputs, synthetic_graph

INPUTS = _inputs(Domain(32, 8, 16), 4)


def sequence(
    slot: int, prompt: int, output: list[int], blocks: list[int], **sampling: int
) -> Sequence:
    ids = tuple(100 * (slot + 1) + i for i in range(prompt))
    request = GenerationRequest(str(slot), ids, SamplingParams(9, **sampling))
    return Sequence(
        request,
        slot,
        np.array(ids, np.int32),
        BlockTable((), 0, blocks=blocks),
        output=output,
        slot=slot,
    )


def tables(*sequences: Sequence) -> SlotTables:
    made = SlotTables(4, 16, 4)
    for one in sequences:
        made.start(one)
    made.sync(sequences)
    return made


def launch(*segments: Segment) -> Launch:
    generated = [s for s in segments if s.generated]
    return Launch(
        synthetic_graph(Kind.MIXED, 32, 8, 16),
        segments,
        sum(s.count for s in segments),
        sum(s.logits for s in segments),
        len(generated),
        sum(s.count for s in generated),
        sum(s.logits for s in generated),
    )


def test_decode_rows() -> None:
    a, b = sequence(2, 3, [7, 8], [5, 6]), sequence(0, 1, [9], [3])
    work = launch(Segment(a, 4, 1, True, True), Segment(b, 1, 1, True, True))
    shape = fill(INPUTS, tables(a, b), work, rows_of(work))
    assert shape == BatchShape(2, 2, 2, 2, 2, 2)
    assert INPUTS.token_ids[:2].tolist() == [8, 9]
    assert INPUTS.positions[:2].tolist() == [4, 1]
    assert INPUTS.slots[:2].tolist() == [6 * 4 + 0, 3 * 4 + 1]
    assert INPUTS.seg_starts[:3].tolist() == [0, 1, 2]
    assert INPUTS.seq_lens[:2].tolist() == [5, 2]
    assert INPUTS.block_tables[:2, :2].tolist() == [[5, 6], [3, 0]]
    assert INPUTS.logit_rows[:2].tolist() == [0, 1]


def test_a_mixed_launch_with_scores_and_chunks_without_logits() -> None:
    a = sequence(1, 2, [50, 51, 52], [4, 5])
    b = sequence(3, 9, [], [1, 2, 3])
    c = sequence(0, 5, [], [7, 8])
    work = launch(
        Segment(a, 2, 3, True, True),
        Segment(b, 3, 3, False, False),
        Segment(c, 1, 4, False, True, scores=True),
    )
    shape = fill(INPUTS, tables(a, b, c), work, rows_of(work))
    assert shape == BatchShape(10, 3, 5, 3, 1, 1)
    assert INPUTS.token_ids[:10].tolist() == [50, 51, 52, 403, 404, 405, 101, 102, 103, 104]
    assert INPUTS.positions[:10].tolist() == [2, 3, 4, 3, 4, 5, 1, 2, 3, 4]
    assert INPUTS.slots[:10].tolist() == [18, 19, 20, 7, 8, 9, 29, 30, 31, 32]
    assert INPUTS.seg_starts[:4].tolist() == [0, 3, 6, 10]
    assert INPUTS.seq_lens[:3].tolist() == [5, 6, 5]
    assert INPUTS.logit_rows[:5].tolist() == [2, 6, 7, 8, 9]


def test_a_chunk_alone_may_want_no_logits() -> None:
    a = sequence(1, 8, [], [4, 5])
    work = launch(Segment(a, 0, 4, False, False))
    assert fill(INPUTS, tables(a), work, rows_of(work)).logits == 0


def test_tables_follow_growth_and_forget_a_slot() -> None:
    a = sequence(1, 4, [9], [4], min_tokens=3, logprobs=2)
    made = tables(a)
    assert (made.stops_from[1], made.top_n[1]) == (7, 2)
    a.table.blocks.append(6)
    made.sync([a])
    assert made.blocks[1].tolist() == [4, 6, 0, 0]
    made.stop(1)
    assert made.blocks[1].tolist() == [0, 0, 0, 0]
    b = sequence(1, 2, [], [3])
    made.start(b)
    made.sync([b])
    assert made.blocks[1].tolist() == [3, 0, 0, 0]
    assert made.top_n[1] == -1
