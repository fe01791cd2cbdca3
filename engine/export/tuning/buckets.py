"""Which captured capacities a tuned core keeps, and why each one."""

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from engine.core.schema import Graph, Kind
from engine.ir.program import Program

WORTH = 4 << 20
"""Bytes of workspace that a smaller capacity must save to stay for that alone."""


class Bucket(Struct, frozen=True):
    """Why a capacity stays, and which smaller graphs it took the place of."""

    reason: str
    took_over: tuple[str, ...] = ()


def keep_buckets(
    graphs: Sequence[Graph], programs: Mapping[str, Program], times: Mapping[str, str]
) -> dict[str, Bucket]:
    """Return the graphs that stay.

    A program runs the rows that are present, so a smaller capacity is no faster in itself: it
    stays where its kernels differ from those of the next larger one, or where it saves workspace.
    Mixed graphs all stay: a run with a lower step limit can use those within it only. times: what
    was measured of a graph's step, for people.
    """
    kept: dict[str, Bucket] = {}
    above: dict[Kind, Graph] = {}
    for graph in sorted(graphs, key=lambda graph: -graph.domain.tokens):
        larger = above.get(graph.kind)
        reason = _reason(graph, larger, programs)
        if reason is not None:
            above[graph.kind] = graph
            measured = times.get(graph.id)
            kept[graph.id] = Bucket(f"measured: {reason}" + (f"; {measured}" if measured else ""))
        elif larger is not None:
            bucket = kept[larger.id]
            kept[larger.id] = replace(bucket, took_over=(graph.id, *bucket.took_over))
    return {graph.id: kept[graph.id] for graph in graphs if graph.id in kept}


def _reason(graph: Graph, larger: Graph | None, programs: Mapping[str, Program]) -> str | None:
    if larger is None:
        return "the limit"
    kernels, others = (
        [launch.kernel for launch in programs[g.program].launches] for g in (graph, larger)
    )
    if kernels != others:
        return f"other kernels than {larger.id}"
    saved = larger.workspace_bytes - graph.workspace_bytes
    if saved >= WORTH:
        return f"{saved / 2**20:.1f} MiB less workspace than {larger.id}"
    if graph.kind is Kind.MIXED:
        return "for runs with a lower step limit"
    return None
