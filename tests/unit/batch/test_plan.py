"""The planner: launches within domains, each row once, families as retained."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.batch.plan import Launch, Planner
from engine.cache.kv import BlockTable
from engine.core.schema import Graph, Kind
from engine.schedule.output import SchedulerOutput, Segment
from engine.schedule.sequence import Sequence
from engine.types import GenerationRequest, SamplingParams
from tests.support.scripted import synthetic_graph, synthetic_graphs

GRAPHS = synthetic_graphs(8, 64, mixed=True, logits=16)
SEPARATE = synthetic_graphs(8, 64, mixed=False, logits=16)


def sequence(name: int, prompt: int, output: int = 0, scores: bool = False) -> Sequence:
    sampling = SamplingParams(99, prompt_logprobs=0 if scores else None)
    ids = tuple(range(prompt))
    request = GenerationRequest(str(name), ids, sampling)
    return Sequence(request, name, np.array(ids, np.int32), BlockTable((), 0), output=[1] * output)


def decode(name: int) -> Segment:
    return Segment(sequence(name, 5, 3), 7, 1, True, True)


def chunk(name: int, count: int, samples: bool = True, scores: bool = False) -> Segment:
    return Segment(sequence(name, count, scores=scores), 0, count, False, samples, scores)


def recompute(name: int, count: int) -> Segment:
    return Segment(sequence(name, 3, count), 3, count, True, True)


def step(
    decodes: list[Segment] | None = None,
    prompts: list[Segment] | None = None,
    recomputes: list[Segment] | None = None,
) -> SchedulerOutput:
    return SchedulerOutput(tuple(decodes or ()), tuple(recomputes or ()), tuple(prompts or ()))


def graphs_of(launches: tuple[Launch, ...]) -> list[str]:
    return [launch.graph.id for launch in launches]


@pytest.mark.parametrize(("rows", "graph"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (8, 8)])
def test_the_smallest_decode_graph_that_fits(rows: int, graph: int) -> None:
    launches = Planner(GRAPHS).plan(step([decode(i) for i in range(rows)]))
    assert graphs_of(launches) == [f"decode-{graph}"]
    assert launches[0].padding == graph - rows


def test_the_smallest_prefill_graph_that_fits() -> None:
    planner = Planner(GRAPHS)
    assert graphs_of(planner.plan(step(prompts=[chunk(0, 16)]))) == ["prefill-16"]
    assert graphs_of(planner.plan(step(prompts=[chunk(0, 17)]))) == ["prefill-64"]


def test_both_sorts_take_one_mixed_launch_where_retained() -> None:
    batch = step([decode(0), decode(1)], [chunk(2, 20), chunk(3, 5)])
    [launch] = Planner(GRAPHS).plan(batch)
    assert launch.graph.id == "mixed-64"
    assert [s.sequence.request.id for s in launch.segments] == ["0", "1", "2", "3"]
    assert (launch.tokens, launch.logits) == (27, 4)
    assert (launch.generated_tokens, launch.generated_segments, launch.generated_logits) == (2,) * 3


def test_both_sorts_take_two_launches_of_one_step_without_mixed_graphs() -> None:
    batch = step([decode(0), decode(1)], [chunk(2, 20), chunk(3, 5)])
    assert graphs_of(Planner(SEPARATE).plan(batch)) == ["decode-2", "prefill-64"]


def test_one_sort_alone_takes_separate_graphs_also_when_mixed_are_retained() -> None:
    planner = Planner(GRAPHS)
    assert graphs_of(planner.plan(step([decode(0)]))) == ["decode-1"]
    assert graphs_of(planner.plan(step(prompts=[chunk(0, 9)]))) == ["prefill-16"]


def test_what_a_mixed_launch_cannot_take_follows_in_prefill_launches() -> None:
    batch = step([decode(0)], [chunk(1, 60), chunk(2, 30)])
    launches = Planner(GRAPHS).plan(batch)
    assert graphs_of(launches) == ["mixed-64", "prefill-64"]
    assert [s.count for s in launches[0].segments] == [1, 60, 3]
    assert [(s.start, s.count, s.samples) for s in launches[1].segments] == [(3, 27, True)]


def test_recomputed_rows_go_before_prompt_rows_and_count_as_generated() -> None:
    batch = step(recomputes=[recompute(0, 6)], prompts=[chunk(1, 4)])
    [launch] = Planner(GRAPHS).plan(batch)
    assert launch.graph.kind is Kind.PREFILL
    assert [s.generated for s in launch.segments] == [True, False]
    assert (launch.generated_tokens, launch.generated_segments) == (6, 1)


def test_scoring_chunks_are_split_by_the_logits_capacity() -> None:
    launches = Planner(GRAPHS).plan(step(prompts=[chunk(0, 40, scores=True)]))
    assert [launch.logits for launch in launches] == [16, 16, 8]
    assert [launch.tokens for launch in launches] == [16, 16, 8]
    assert [launch.segments[0].samples for launch in launches] == [False, False, True]


def test_many_short_prompts_are_split_by_the_segment_capacity() -> None:
    launches = Planner(GRAPHS).plan(step(prompts=[chunk(i, 2) for i in range(11)]))
    assert [len(launch.segments) for launch in launches] == [8, 3]


def test_a_catalog_without_separate_graphs_is_refused() -> None:
    with pytest.raises(ValueError, match="decode and prefill"):
        Planner([g for g in GRAPHS if g.kind is Kind.MIXED])


def check(launches: tuple[Launch, ...], batch: SchedulerOutput, graphs: tuple[Graph, ...]) -> None:
    covered: dict[str, list[Segment]] = {}
    for launch in launches:
        domain = launch.graph.domain
        assert launch.graph in graphs
        assert launch.segments
        assert launch.tokens == sum(s.count for s in launch.segments) <= domain.tokens
        assert len(launch.segments) <= domain.seqs
        assert launch.logits == sum(s.logits for s in launch.segments) <= domain.logits
        roles = [s.generated for s in launch.segments]
        assert roles == sorted(roles, reverse=True)
        head = [s for s in launch.segments if s.generated]
        assert launch.generated_segments == len(head)
        assert launch.generated_tokens == sum(s.count for s in head)
        assert launch.generated_logits == sum(s.logits for s in head)
        if launch.graph.kind is Kind.DECODE:
            assert all(s.count == 1 and s.generated for s in launch.segments)
        for s in launch.segments:
            covered.setdefault(s.sequence.request.id, []).append(s)
    assert covered.keys() == {s.sequence.request.id for s in batch.segments}
    for whole in batch.segments:
        parts = covered[whole.sequence.request.id]
        assert [p.start for p in parts] == [whole.start, *(p.end for p in parts[:-1])]
        assert parts[-1].end == whole.end
        assert [p.samples for p in parts] == [False] * (len(parts) - 1) + [whole.samples]
        assert all((p.generated, p.scores) == (whole.generated, whole.scores) for p in parts)


CHUNK = st.tuples(st.integers(1, 90), st.booleans(), st.booleans())


@settings(max_examples=200, deadline=None)
@given(
    decodes=st.integers(0, 8),
    chunks=st.lists(CHUNK, max_size=12),
    recomputes=st.lists(st.integers(2, 50), max_size=5),
    prefill=st.tuples(st.integers(1, 64), st.integers(1, 8), st.integers(1, 16)),
    mixed=st.one_of(
        st.none(), st.tuples(st.integers(1, 64), st.integers(1, 16), st.integers(1, 16))
    ),
)
def test_any_step_is_covered_exactly_once_within_domains(
    decodes: int,
    chunks: list[tuple[int, bool, bool]],
    recomputes: list[int],
    prefill: tuple[int, int, int],
    mixed: tuple[int, int, int] | None,
) -> None:
    graphs = [synthetic_graph(Kind.DECODE, c, c, c) for c in (1, 2, 4, 8)]
    graphs += [synthetic_graph(Kind.PREFILL, *prefill)]
    if mixed is not None:
        graphs.append(synthetic_graph(Kind.MIXED, *mixed))
    batch = step(
        [decode(i) for i in range(decodes)],
        [chunk(100 + i, *c) for i, c in enumerate(chunks)],
        [recompute(200 + i, count) for i, count in enumerate(recomputes)],
    )
    launches = Planner(graphs).plan(batch)
    check(launches, batch, tuple(graphs))
    if mixed is None:
        assert all(launch.graph.kind is not Kind.MIXED for launch in launches)
