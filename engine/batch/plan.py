"""From scheduled segments to launches: the only place that sees graphs."""

from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from engine.core.schema import Graph, Kind
from engine.ir.program import Domain
from engine.schedule.output import SchedulerOutput, Segment


class Launch(Struct, frozen=True):
    """One replay: a graph and the segments it carries, generated rows first.

    tokens, logits: rows present, within the graph's domain. generated_*: those of the generated
    role, which come first. drafts: rows of draft tokens.
    """

    graph: Graph
    segments: tuple[Segment, ...]
    tokens: int
    logits: int
    generated_segments: int
    generated_tokens: int
    generated_logits: int
    drafts: int = 0

    @property
    def padding(self) -> int:
        """Rows that the graph's capacity has beyond the rows present."""
        return self.graph.domain.tokens - self.tokens


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
        self._decode_rows = min(_size(self._decode[-1]))

    def plan(self, output: SchedulerOutput) -> tuple[Launch, ...]:
        """Return the step's launches, in order; each row is in exactly one."""
        if not (output.recomputes or output.prompts) and output.decodes:
            seqs, drafts = len(output.decodes), output.drafts
            rows = seqs + drafts
            if rows <= self._decode_rows:  # most steps
                graph = next(g for g in self._decode if _fits(g.domain, rows, seqs, rows))
                return (Launch(graph, output.decodes, rows, rows, seqs, rows, rows, drafts),)
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


def _pack(segments: list[Segment], domain: Domain) -> tuple[list[Segment], list[Segment]]:
    """Take segments from the front until the domain is full; return the taken and the rest.

    The last one taken is split where it does not fit whole.
    """
    tokens, logits = domain.tokens, domain.logits
    for index, segment in enumerate(segments[: domain.seqs]):
        if segment.count <= tokens and segment.logits <= logits:
            tokens -= segment.count
            logits -= segment.logits
            continue
        taken, rest = segments[:index], segments[index:]
        count = min(segment.count - 1, tokens, logits if segment.scores else tokens)
        if count:
            taken.append(replace(segment, count=count, samples=False))
            rest[0] = replace(segment, start=segment.start + count, count=segment.count - count)
        return taken, rest
    return segments[: domain.seqs], segments[domain.seqs :]


def _launch(graphs: tuple[Graph, ...], segments: list[Segment]) -> Launch:
    """Put segments on the smallest graph that takes them."""
    tokens, logits = _rows(segments)
    generated = [segment for segment in segments if segment.generated]
    head_tokens, head_logits = _rows(generated)
    graph = next(g for g in graphs if _fits(g.domain, tokens, len(segments), logits))
    return Launch(graph, tuple(segments), tokens, logits, len(generated), head_tokens, head_logits)


def _rows(segments: list[Segment]) -> tuple[int, int]:
    """Rows and logits rows."""
    return sum(s.count for s in segments), sum(s.logits for s in segments)


def _fits(domain: Domain, tokens: int, seqs: int, logits: int) -> bool:
    return tokens <= domain.tokens and seqs <= domain.seqs and logits <= domain.logits
