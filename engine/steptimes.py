"""The step-time model: how long a launch takes, from the replays that an export measured.

A graph's measured points lie on levels of equal rows, and on a level at several contexts. On a
level, seconds are piecewise linear in the keys that a row sees (what attention adds); between
levels, in rows (what linears add). Outside the points the nearest piece goes on. A mixed launch
is its own base, measured without attention, plus what attention adds to the decode rows in a decode
graph and to the prompt rows in a prefill graph.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from engine.core.schema import Catalog, Graph, Kind, StepTime

Points = Sequence[tuple[float, float]]
"""(x, seconds), x ascending."""


class LaunchLoad(Struct, frozen=True):
    """What a launch carries: rows that decode and rows of prompts, and all keys that they see."""

    graph: str
    decode_rows: int
    decode_keys: float
    prompt_rows: int
    prompt_keys: float


class _Surface(Struct, frozen=True):
    """Seconds over (rows, keys a row): a line of points for each level of rows, ascending."""

    levels: tuple[tuple[int, tuple[tuple[float, float], ...]], ...]

    def seconds(self, rows: float, keys: float) -> float:
        return on_line([(level, on_line(line, keys)) for level, line in self.levels], rows)

    def attention(self, rows: float, keys: float) -> float:
        """What ``keys`` a row add to no keys at all."""
        return max(0.0, self.seconds(rows, keys) - self.seconds(rows, 0.0))


class StepTimes:
    """Predicts launches of the graphs that a catalog has step times of."""

    def __init__(self, catalog: Catalog) -> None:
        self._kinds = {graph.id: graph.kind for graph in catalog.graphs}
        by_graph: dict[str, list[StepTime]] = defaultdict(list)
        for time in catalog.step_times:
            by_graph[time.graph].append(time)
        self._surfaces = {
            name: _surface(times)
            for name, times in by_graph.items()
            if self._kinds[name] is not Kind.MIXED
        }
        self._by_rows = {
            kind: self._sorted(catalog.graphs, kind) for kind in (Kind.DECODE, Kind.PREFILL)
        }
        self._bases = {
            name: self._base(times)
            for name, times in by_graph.items()
            if self._kinds[name] is Kind.MIXED
        }

    def missing(self, graphs: Iterable[Graph]) -> list[str]:
        """Ids of graphs that nothing was measured of."""
        known = self._surfaces.keys() | self._bases.keys()
        return [graph.id for graph in graphs if graph.id not in known]

    def seconds(self, load: LaunchLoad) -> float:
        """Return the seconds of one replay. Raises KeyError for a graph without step times."""
        if self._kinds[load.graph] is Kind.MIXED:
            base = _bilinear(self._bases[load.graph], load.decode_rows, load.prompt_rows)
            attention = self._attention(Kind.DECODE, load.decode_rows, load.decode_keys)
            attention += self._attention(Kind.PREFILL, load.prompt_rows, load.prompt_keys)
            return max(base + attention, 1e-6)
        rows = load.decode_rows + load.prompt_rows
        keys = (load.decode_keys + load.prompt_keys) / rows
        return max(self._surfaces[load.graph].seconds(rows, keys), 1e-6)

    def _sorted(self, graphs: Iterable[Graph], kind: Kind) -> list[tuple[int, _Surface]]:
        """Surfaces of a kind's measured graphs, by capacity."""
        found = [
            (graph.domain.tokens, self._surfaces[graph.id])
            for graph in graphs
            if graph.kind is kind and graph.id in self._surfaces
        ]
        return sorted(found, key=lambda entry: entry[0])

    def _attention(self, kind: Kind, rows: int, keys: float) -> float:
        """Seconds that attention takes of rows of one kind, on the graph that would take them."""
        surfaces = self._by_rows[kind]
        if rows == 0 or not surfaces:
            return 0.0
        index = min(bisect_left(surfaces, rows, key=lambda e: e[0]), len(surfaces) - 1)
        return surfaces[index][1].attention(rows, keys / rows)

    def _base(self, times: Iterable[StepTime]) -> Mapping[int, Points]:
        """Seconds without attention: decode rows -> points over prompt rows."""
        lines: dict[int, list[tuple[float, float]]] = defaultdict(list)
        for time in times:
            prompt = time.tokens - time.generated
            attention = self._attention(
                Kind.DECODE, time.generated, time.generated * time.context
            ) + self._attention(Kind.PREFILL, prompt, prompt * mean_keys(time.context, prompt))
            lines[time.generated].append((prompt, max(time.seconds - attention, 1e-6)))
        return {rows: sorted(line) for rows, line in sorted(lines.items())}


def mean_keys(context: float, rows: float) -> float:
    """Keys that a chunk's rows see on average, when the last one sees ``context``."""
    return context - (rows - 1) / 2


def _surface(times: Iterable[StepTime]) -> _Surface:
    lines: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for time in times:
        prompt = time.tokens - time.generated
        keys = mean_keys(time.context, prompt) if prompt else time.context
        lines[time.tokens].append((keys, time.seconds))
    return _Surface(tuple((rows, tuple(sorted(line))) for rows, line in sorted(lines.items())))


def _bilinear(lines: Mapping[int, Points], decode_rows: float, prompt_rows: float) -> float:
    return on_line(
        [(rows, on_line(line, prompt_rows)) for rows, line in lines.items()], decode_rows
    )


def on_line(points: Points, x: float) -> float:
    """Return the piecewise linear function through ``points`` at x, its end pieces going on."""
    if len(points) == 1:
        return points[0][1]
    index = min(max(bisect_left(points, x, key=lambda point: point[0]), 1), len(points) - 1)
    (x0, y0), (x1, y1) = points[index - 1], points[index]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
