"""What a device is sized for: the retained graphs, or all that a live switch may bring in."""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from engine.core.schema import Catalog, Graph
from engine.device.base import capacity_of
from engine.errors import SelectionError
from engine.ir.program import Domain
from engine.load.select import LoadLimits, select


class Room(Struct, frozen=True):
    """Taken once, at load: the largest batch that the inputs hold, and the arena's bytes."""

    capacity: Domain
    workspace_bytes: int


def room_for(graphs: Sequence[Graph]) -> Room:
    """Return the room that these graphs need; they share it, since one runs at a time."""
    return Room(capacity_of(graphs), max(graph.workspace_bytes for graph in graphs))


def switchable(
    catalog: Catalog, default_mixed: bool, limits: LoadLimits, retained: Iterable[str]
) -> tuple[Graph, ...]:
    """Return the graphs retained now or after a switch to either family, in catalog order."""
    ids = set(retained)
    for requested in (False, True):
        try:
            ids.update(select(catalog, default_mixed, requested, limits).retained)
        except SelectionError:  # a switch to it is refused just the same
            continue
    return tuple(graph for graph in catalog.graphs if graph.id in ids)
