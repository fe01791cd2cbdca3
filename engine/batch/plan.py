"""From scheduled segments to launches: the only place that sees graphs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from engine.core.schema import Graph, Kind
from engine.ir.program import Domain
from engine.schedule.output import SchedulerOutput, Segment


@dataclass(frozen=True, slots=True)
class Launch:
    """One replay: a graph and the segments it carries, generated rows first.

    tokens, logits: rows present, within the graph's domain. generated_*: those of the generated
    role, which come first.
    """

    graph: Graph
    segments: tuple[Segment, ...]
    tokens: int
    logits: int
    generated_segments: int
    generated_tokens: int
    generated_logits: int

    @property
    def padding(self) -> int:
        """Rows that the graph's capacity has beyond the rows present."""
        return self.graph.domain.tokens - self.tokens


@dataclass(frozen=True, slots=True)
class _Load:
    """Rows, segments and logits of some segments."""

    tokens: int = 0
    seqs: int = 0
    logits: int = 0

    def plus(self, segment: Segment) -> "_Load":
        return _Load(self.tokens + segment.count, self.seqs + 1, self.logits + segment.logits)

    def fits(self, domain: Domain) -> bool:
        return (
            self.tokens <= domain.tokens
            and self.seqs <= domain.seqs
            and self.logits <= domain.logits
        )


def _size(graph: Graph) -> tuple[int, int, int]:
    return (graph.domain.tokens, graph.domain.seqs, graph.domain.logits)


def _by_size(graphs: Iterable[Graph], kind: Kind) -> tuple[Graph, ...]:
    return tuple(sorted((g for g in graphs if g.kind is kind), key=_size))


class Planner:
    """Covers a step's segments with launches of the retained graphs.

    Decode rows and chunks together take a mixed launch where one is retained; what does not fit
    it, and every other step, takes decode and prefill launches. Prefill graphs also carry the
    generated rows that a preemption made to be recomputed. Any step can be covered without mixed
    graphs, since segments may be split anywhere: chunking never changes an answer.
    """

    def __init__(self, graphs: Sequence[Graph]) -> None:
        self._decode = _by_size(graphs, Kind.DECODE)
        self._prefill = _by_size(graphs, Kind.PREFILL)
        self._mixed = _by_size(graphs, Kind.MIXED)
        if not self._decode or not self._prefill:
            raise ValueError("decode and prefill graphs are needed")

    def plan(self, output: SchedulerOutput) -> tuple[Launch, ...]:
        """Return the step's launches, in order; each row is in exactly one."""
        decodes = list(output.decodes)
        chunks = [*output.recomputes, *output.prompts]
        launches: list[Launch] = []
        if decodes and chunks and self._takes_mixed(decodes):
            taken, chunks = _pack([*decodes, *chunks], self._mixed[-1].domain)
            decodes = []
            launches.append(_launch(self._mixed, taken))
        launches += _cover(decodes, self._decode)
        launches += _cover(chunks, self._prefill)
        return tuple(launches)

    def _takes_mixed(self, decodes: list[Segment]) -> bool:
        """Whether a mixed graph holds all decode rows and at least one chunk row."""
        if not self._mixed:
            return False
        domain = self._mixed[-1].domain
        return len(decodes) < min(domain.tokens, domain.seqs, domain.logits)


def _cover(segments: list[Segment], graphs: tuple[Graph, ...]) -> Iterable[Launch]:
    """Cover segments with launches, as full as the largest graph allows."""
    while segments:
        taken, segments = _pack(segments, graphs[-1].domain)
        yield _launch(graphs, taken)


def _pack(segments: list[Segment], domain: Domain) -> tuple[tuple[Segment, ...], list[Segment]]:
    """Take segments from the front until the domain is full; return the taken and the rest.

    The last one taken is split where it does not fit whole.
    """
    taken: list[Segment] = []
    load = _Load()
    for index, segment in enumerate(segments):
        whole = load.plus(segment)
        if whole.fits(domain):
            taken.append(segment)
            load = whole
            continue
        rest = segments[index:]
        count = _rows_that_fit(segment, load, domain)
        if count:
            taken.append(_head(segment, count))
            rest[0] = _tail(segment, count)
        return tuple(taken), rest
    return tuple(taken), []


def _rows_that_fit(segment: Segment, load: _Load, domain: Domain) -> int:
    """Rows of a segment that is too large as a whole that still fit."""
    if load.seqs == domain.seqs:
        return 0
    rows = min(segment.count - 1, domain.tokens - load.tokens)
    return min(rows, domain.logits - load.logits) if segment.scores else rows


def _head(segment: Segment, count: int) -> Segment:
    return replace(segment, count=count, samples=False)


def _tail(segment: Segment, count: int) -> Segment:
    return replace(segment, start=segment.start + count, count=segment.count - count)


def _launch(graphs: tuple[Graph, ...], segments: tuple[Segment, ...]) -> Launch:
    """Put segments on the smallest graph that takes them."""
    load = generated = _Load()
    for segment in segments:
        load = load.plus(segment)
        if segment.generated:
            generated = generated.plus(segment)
    graph = next(g for g in graphs if load.fits(g.domain))
    return Launch(
        graph,
        segments,
        load.tokens,
        load.logits,
        generated.seqs,
        generated.tokens,
        generated.logits,
    )
