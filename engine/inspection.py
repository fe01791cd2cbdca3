"""What a core holds, and what a selection would retain and prune: the data of ``flare inspect``."""

from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

from engine.core.reader import open_core
from engine.core.schema import Candidate, Catalog, Graph, Manifest, TuningRecord
from engine.core.strict import encode
from engine.core.validate import validate
from engine.describe import selection_values
from engine.errors import SettingsError
from engine.ir.print import format_program
from engine.load.prune import Pruned, count, prune
from engine.load.select import LoadLimits, Selection, select


def inspect_core(path: Path, mixed_prefill: bool | None = None) -> dict[str, Any]:
    """Open and validate a core and resolve the request against it, at the core's own limits.

    Returns JSON values: identity, model, limits, default_mixed, graphs (each with ``retained``,
    the reason why not, and its canary), kernels, tuning, machines, step times, storage, sections,
    and ``selection`` with what is captured, retained and pruned. Storage is not hashed
    (``engine.verification`` does). Raises CoreError, or SelectionError when the request is refused.
    """
    with open_core(path, hash_storage=False) as core:
        manifest = core.manifest
        validate(manifest)
        selection = select(
            manifest.catalog, manifest.default_mixed, mixed_prefill, core_limits(manifest)
        )
        pruned = prune(manifest.catalog, selection)
        counts = count(manifest.catalog, pruned)
        tuning = {"captured": counts.tuning_captured, "retained": counts.tuning_retained}
        return {
            "path": str(core.path),
            "digest": core.digest,
            "format_version": manifest.format_version,
            "identity": encode(manifest.identity),
            "model": encode(manifest.model),
            "limits": encode(manifest.limits),
            "default_mixed": manifest.default_mixed,
            "graphs": _graphs(manifest.catalog, selection),
            "kernels": _kernels(manifest.catalog, pruned),
            "tuning": _tuning(manifest.catalog, pruned),
            "machines": encode(manifest.catalog.machines),
            "step_times": encode(manifest.catalog.step_times),
            "storage": _storage(manifest.catalog, pruned),
            "sections": encode(manifest.sections),
            "selection": {**selection_values(selection, counts), "tuning": tuning},
        }


def program_text(path: Path, graph_id: str) -> str:
    """Return what a graph runs: its program's buffers, then one line per launch.

    Raises CoreError, or SettingsError when the core has no such graph.
    """
    with open_core(path, hash_storage=False) as core:
        validate(core.manifest)
        catalog = core.manifest.catalog
    programs = {graph.id: catalog.programs[graph.program] for graph in catalog.graphs}
    if graph_id not in programs:
        raise SettingsError(f"the core has no graph {graph_id!r}", f"one of: {', '.join(programs)}")
    return format_program(programs[graph_id])


def core_limits(manifest: Manifest) -> LoadLimits:
    """Return the limits that the core was exported for, as a run's limits."""
    limits = manifest.limits
    return LoadLimits(
        limits.max_num_seqs,
        limits.max_model_len,
        limits.max_step_tokens,
        manifest.identity.device,
    )


def _graphs(catalog: Catalog, selection: Selection) -> list[dict[str, Any]]:
    canaries = {canary.graph: encode(canary) for canary in catalog.canaries}
    return [
        {**_graph(graph, selection), "canary": canaries.get(graph.id)} for graph in catalog.graphs
    ]


def _graph(graph: Graph, selection: Selection) -> dict[str, Any]:
    retained = graph.id in selection.retained
    reason = None if retained else dict(selection.ineligible).get(graph.id, "not selected")
    return {
        "id": graph.id,
        "kind": graph.kind.value,
        "family": graph.family.value,
        "domain": encode(graph.domain),
        "max_q": graph.max_q,
        "speculative": graph.speculative,
        "device": graph.device,
        "workspace_bytes": graph.workspace_bytes,
        "kernels": len(graph.kernels),
        "tuning": len(graph.tuning),
        "layouts": len(graph.layouts),
        "capacity_reason": graph.reason,
        "retained": retained,
        "reason": reason,
    }


def _kernels(catalog: Catalog, pruned: Pruned) -> list[dict[str, Any]]:
    kept = {kernel.id for kernel in pruned.kernels}
    return [{**encode(kernel), "retained": kernel.id in kept} for kernel in catalog.kernels]


def _tuning(catalog: Catalog, pruned: Pruned) -> list[dict[str, Any]]:
    """Records without their samples: those are in ``core.json``."""
    kept = {record.key for record in pruned.tuning}
    return [
        {
            "key": record.key,
            "winner": record.winner,
            "gain": _gain(record),
            "reason": record.reason,
            "profile": record.profile,
            "candidates": len(record.candidates),
            "samples": sum(len(candidate.samples) for candidate in record.candidates),
            "tried": [_candidate(candidate) for candidate in record.candidates],
            "depends_on": list(record.depends_on),
            "introduced_by": record.introduced_by,
            "retained": record.key in kept,
        }
        for record in catalog.tuning
    ]


def _candidate(candidate: Candidate) -> dict[str, Any]:
    samples = candidate.samples
    return {
        "kernel": candidate.kernel,
        "samples": len(samples),
        "median": median(samples) if samples else None,
        "low": candidate.low,
        "high": candidate.high,
        "checked": candidate.checked,
        "refused": candidate.refused,
    }


def _gain(record: TuningRecord) -> float | None:
    """The share of the heuristic's time (that of the first candidate) that the winner saves."""
    times = {candidate.kernel: candidate.samples for candidate in record.candidates}
    heuristic, winner = record.candidates[0].samples, times[record.winner]
    return 1 - median(winner) / median(heuristic) if heuristic and winner else None


def _storage(catalog: Catalog, pruned: Pruned) -> list[dict[str, Any]]:
    """Return bytes and tensors per rank and layout."""
    tensors: Counter[tuple[int, str]] = Counter()
    sizes: Counter[tuple[int, str]] = Counter()
    loaded: Counter[tuple[int, str]] = Counter()
    for tensor in catalog.storage:
        tensors[tensor.rank, tensor.layout] += 1
        sizes[tensor.rank, tensor.layout] += tensor.size
    for tensor in pruned.storage:
        loaded[tensor.rank, tensor.layout] += tensor.size
    return [
        {
            "rank": rank,
            "layout": layout,
            "tensors": tensors[rank, layout],
            "bytes": sizes[rank, layout],
            "loaded_bytes": loaded[rank, layout],
        }
        for rank, layout in sorted(tensors)
    ]
