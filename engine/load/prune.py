"""Pruning: what the retained graphs need of a core. A pure function over references."""

from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct

from engine.core.schema import Catalog, Graph, Kernel, Kind, StorageTensor, TuningRecord
from engine.ir.program import Program
from engine.load.select import Selection


class Pruned(Struct, frozen=True):
    """The part of a catalog that a selection needs, in catalog order. Ids in it are complete.

    storage: tensors of all ranks. workspace_bytes: the largest of the retained graphs; they
    share one workspace, since one graph runs at a time.
    """

    graphs: tuple[Graph, ...]
    kernels: tuple[Kernel, ...]
    tuning: tuple[TuningRecord, ...]
    storage: tuple[StorageTensor, ...]
    programs: Mapping[str, Program]
    workspace_bytes: int


class Counts(Struct, frozen=True):
    """Captured against retained, as ``/v1/config`` reports them. Bytes are one rank's."""

    captured: Mapping[str, int]
    retained: Mapping[str, int]
    pruned: Mapping[str, int]
    kernels_captured: int
    kernels_retained: int
    tuning_captured: int
    tuning_retained: int
    storage_bytes_captured: int
    storage_bytes_loaded: int
    workspace_bytes_captured: int
    workspace_bytes_retained: int


def prune(catalog: Catalog, selection: Selection) -> Pruned:
    """Keep what the retained graphs refer to, directly or through tuning dependencies.

    A tuning record stays when any retained graph needs it, whichever graph introduced it.
    """
    ids = set(selection.retained)
    graphs = tuple(graph for graph in catalog.graphs if graph.id in ids)
    kernels = {kernel for graph in graphs for kernel in graph.kernels}
    layouts = {name for graph in graphs for name in graph.layouts}
    programs = {graph.program for graph in graphs}
    tuning = tuning_closure(catalog.tuning, (key for graph in graphs for key in graph.tuning))
    return Pruned(
        graphs,
        tuple(kernel for kernel in catalog.kernels if kernel.id in kernels),
        tuple(record for record in catalog.tuning if record.key in tuning),
        tuple(tensor for tensor in catalog.storage if tensor.name in layouts),
        {name: program for name, program in catalog.programs.items() if name in programs},
        max((graph.workspace_bytes for graph in graphs), default=0),
    )


def tuning_closure(records: Iterable[TuningRecord], keys: Iterable[str]) -> set[str]:
    """Return ``keys`` and all keys that they depend on."""
    edges = {record.key: record.depends_on for record in records}
    closure: set[str] = set()
    open_keys = list(keys)
    while open_keys:
        key = open_keys.pop()
        if key not in closure:
            closure.add(key)
            open_keys.extend(edges[key])
    return closure


def count(catalog: Catalog, pruned: Pruned, rank: int = 0) -> Counts:
    """Count what was captured and what is retained, bytes for one rank."""
    captured = _by_kind(catalog.graphs)
    retained = _by_kind(pruned.graphs)
    return Counts(
        captured,
        retained,
        {kind: captured[kind] - retained[kind] for kind in captured},
        len(catalog.kernels),
        len(pruned.kernels),
        len(catalog.tuning),
        len(pruned.tuning),
        storage_bytes(catalog.storage, rank),
        storage_bytes(pruned.storage, rank),
        max((graph.workspace_bytes for graph in catalog.graphs), default=0),
        pruned.workspace_bytes,
    )


def storage_bytes(storage: Iterable[StorageTensor], rank: int) -> int:
    """Return the bytes of a rank's tensors."""
    return sum(tensor.size for tensor in storage if tensor.rank == rank)


def _by_kind(graphs: Collection[Graph]) -> dict[str, int]:
    return {kind.value: sum(graph.kind is kind for graph in graphs) for kind in Kind}
