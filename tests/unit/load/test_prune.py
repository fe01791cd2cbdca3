"""Pruning keeps what retained graphs need, whoever introduced it, and nothing else."""

from msgspec.structs import replace

from engine.core.schema import Candidate, Catalog, Kernel, Kind, StorageTensor, TuningRecord
from engine.load.prune import Pruned, count, prune, tuning_closure
from engine.load.select import LoadLimits, select
from tests.support.cores import CoreSpec, manifest

LIMITS = LoadLimits(4, 256, 32)
KERNEL = Kernel("cpu.mixed.only", "linear", "mixed.only", "cpu")


def record(key: str, *depends_on: str, introduced_by: str | None = None) -> TuningRecord:
    kernel = "cpu.rms_norm"
    return TuningRecord(key, (Candidate(kernel),), kernel, "fast", depends_on, introduced_by)


def extended() -> Catalog:
    """A catalog whose mixed graphs alone need a kernel, a layout and a tuning chain."""
    base = manifest(CoreSpec()).catalog
    tensor = replace(base.storage[0], name="embed.wide", layout="plain", n=0, k=0)
    chain = (
        record("chain/a", "chain/b", introduced_by="mixed-8"),
        record("chain/b", "linear/bf16p16/rows-any"),
        record("spare"),
    )
    graphs = tuple(
        replace(
            g,
            kernels=(*g.kernels, KERNEL.id),
            layouts=(*g.layouts, tensor.name),
            tuning=(*g.tuning, "chain/a"),
        )
        if g.kind is Kind.MIXED
        else g
        for g in base.graphs
    )
    return replace(
        base,
        graphs=graphs,
        kernels=(*base.kernels, KERNEL),
        storage=(*base.storage, tensor),
        tuning=(*base.tuning, *chain),
    )


def pruned(catalog: Catalog, requested: bool) -> Pruned:
    return prune(catalog, select(catalog, True, requested, LIMITS))


def names(storage: tuple[StorageTensor, ...]) -> set[str]:
    return {tensor.name for tensor in storage}


def test_disabling_mixed_prunes_what_only_mixed_needs() -> None:
    catalog = extended()
    kept = pruned(catalog, False)
    assert {g.kind for g in kept.graphs} == {Kind.DECODE, Kind.PREFILL}
    assert kept.programs.keys() == {g.program for g in kept.graphs}
    assert KERNEL.id not in {k.id for k in kept.kernels}
    assert "embed.wide" not in names(kept.storage)
    assert not {"chain/a", "chain/b", "spare"} & {r.key for r in kept.tuning}


def test_enabling_mixed_keeps_its_closure() -> None:
    catalog = extended()
    kept = pruned(catalog, True)
    assert kept.graphs == catalog.graphs
    assert KERNEL in kept.kernels
    assert names(kept.storage) == names(catalog.storage)
    assert {r.key for r in kept.tuning} == {r.key for r in catalog.tuning} - {"spare"}


def test_records_that_a_mixed_graph_introduced_stay_where_needed() -> None:
    """rows-any and rows-8 were first asked for by mixed-8, and separate graphs depend on them."""
    catalog = manifest(CoreSpec()).catalog
    introduced = {r.key for r in catalog.tuning if (r.introduced_by or "").startswith("mixed")}
    shared = {"linear/bf16p16/rows-any", "linear/bf16p16/rows-8", "linear/bf16p16/rows-32"}
    assert shared <= introduced
    kept = pruned(catalog, False)
    assert shared <= {r.key for r in kept.tuning}
    wanted = {key for g in kept.graphs for key in g.tuning}
    assert {r.key for r in kept.tuning} == tuning_closure(catalog.tuning, wanted)


def test_separate_resources_are_the_same_in_every_selection() -> None:
    catalog = extended()
    off, on = pruned(catalog, False), pruned(catalog, True)
    assert set(off.graphs) < set(on.graphs)
    assert {k.id for k in off.kernels} < {k.id for k in on.kernels}
    assert names(off.storage) < names(on.storage)
    assert off.programs.items() <= on.programs.items()
    assert {r.key for r in off.tuning} < {r.key for r in on.tuning}


def test_workspace_is_the_largest_that_is_retained() -> None:
    catalog = manifest(CoreSpec()).catalog
    graphs = tuple(
        replace(g, workspace_bytes=10**9) if g.id == "mixed-8" else g for g in catalog.graphs
    )
    catalog = replace(catalog, graphs=graphs)
    assert pruned(catalog, True).workspace_bytes == 10**9
    separate = [g.workspace_bytes for g in graphs if g.kind is not Kind.MIXED]
    assert pruned(catalog, False).workspace_bytes == max(separate)


def test_pruning_leaves_the_catalog_alone() -> None:
    catalog = extended()
    before = (catalog.graphs, catalog.kernels, catalog.tuning, catalog.storage)
    programs = dict(catalog.programs)
    pruned(catalog, False)
    assert (catalog.graphs, catalog.kernels, catalog.tuning, catalog.storage) == before
    assert catalog.programs == programs


def test_counts() -> None:
    catalog = extended()
    counts = count(catalog, pruned(catalog, False))
    assert counts.captured == {"prefill": 2, "decode": 3, "verify": 0, "draft": 0, "mixed": 2}
    assert counts.retained == {"prefill": 2, "decode": 3, "verify": 0, "draft": 0, "mixed": 0}
    assert counts.pruned == {"prefill": 0, "decode": 0, "verify": 0, "draft": 0, "mixed": 2}
    assert (counts.kernels_captured, counts.kernels_retained) == (7, 6)
    wide = next(t.size for t in catalog.storage if t.name == "embed.wide")
    assert counts.storage_bytes_captured - counts.storage_bytes_loaded == wide
    assert counts.workspace_bytes_captured >= counts.workspace_bytes_retained > 0


def test_storage_of_every_rank_is_kept_and_counted_apart() -> None:
    catalog = manifest(CoreSpec()).catalog
    other = tuple(replace(t, rank=1) for t in catalog.storage)
    both = replace(catalog, storage=(*catalog.storage, *other))
    kept = pruned(both, True)
    assert len(kept.storage) == 2 * len(catalog.storage)
    assert count(both, kept).storage_bytes_loaded == count(catalog, kept, 1).storage_bytes_loaded
