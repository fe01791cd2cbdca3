"""Validation of a core's catalog: everything that can be known before a device is touched.

Each fault has its own error type (``engine.core.errors``); the first one found is raised.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from engine.core.errors import (
    CapacityGapError,
    DanglingReferenceError,
    DependencyCycleError,
    DuplicateIdError,
    FamilyMismatchError,
    KernelMissingError,
    LayoutMissingError,
    ModelInvalidError,
    ProgramMissingError,
    TuningMissingError,
)
from engine.core.schema import FAMILY_OF_KIND, Catalog, Graph, Kind, Limits, Manifest, ModelSpec
from engine.core.validate_kernels import validate_kernels
from engine.core.validate_measured import validate_measured
from engine.core.validate_programs import validate_programs
from engine.core.validate_storage import validate_storage

_TOP = 2**31 - 1


def validate(manifest: Manifest) -> None:
    """Check the whole catalog. Raises a CoreError subclass that names the entry.

    Looks at the manifest and programs alone: no file is opened, no digest computed.
    """
    catalog = manifest.catalog
    _check_model(manifest.model, manifest.limits)
    _check_ids(manifest)
    for graph in catalog.graphs:
        _check_graph(graph, manifest)
    validate_kernels(manifest)
    _check_references(catalog)
    _check_cycles(catalog)
    check_coverage(catalog.graphs, manifest.limits)
    validate_storage(manifest)
    validate_programs(manifest)
    validate_measured(manifest)


def _check_model(model: ModelSpec, limits: Limits) -> None:
    counts = {
        f"model.{name}": getattr(model, name)
        for name in ("layers", "hidden", "intermediate", "heads", "kv_heads", "head_dim",
                     "vocab_size", "logits_width", "context_length")
    }  # fmt: skip
    counts |= {f"limits.{name}": getattr(limits, name) for name in Limits.__struct_fields__}
    kv_names = ("layers", "kv_heads", "head_dim", "block_size")
    counts |= {f"model.kv.{name}": getattr(model.kv, name) for name in kv_names}
    for key, value in counts.items():
        if not 1 <= value <= _TOP:
            raise ModelInvalidError(f"{key}: expected 1 to {_TOP}, found {value}")
    for key, holds, expected, found in _relations(model, limits):
        if not holds:
            raise ModelInvalidError(f"{key}: expected {expected}, found {found}")
    for token in model.eos_token_ids:
        if not 0 <= token < model.vocab_size:
            raise ModelInvalidError(
                f"model.eos_token_ids: expected ids below {model.vocab_size}, found {token}"
            )


def _relations(model: ModelSpec, limits: Limits) -> Iterable[tuple[str, bool, str, float]]:
    """Yield what must hold between sizes: key, whether it does, what was expected and found."""
    kv = model.kv
    divides = model.heads % model.kv_heads == 0
    yield "model.heads", divides, f"a multiple of {model.kv_heads} kv_heads", model.heads
    wide = model.logits_width >= model.vocab_size
    yield "model.logits_width", wide, f"vocab_size {model.vocab_size} or more", model.logits_width
    layers = model.layers + model.mtp_depth
    yield "model.kv.layers", kv.layers == layers, f"all {layers} layers", kv.layers
    for name in ("kv_heads", "head_dim"):
        wanted, found = getattr(model, name), getattr(kv, name)
        yield f"model.kv.{name}", wanted == found, f"model.{name} {wanted}", found
    yield "model.mtp_depth", model.mtp_depth >= 0, "0 or more", model.mtp_depth
    yield "model.rms_eps", model.rms_eps > 0, "more than 0", model.rms_eps
    yield "model.rope_theta", model.rope_theta > 0, "more than 0", model.rope_theta
    fits = limits.max_model_len <= model.context_length
    most = f"at most the context length {model.context_length}"
    yield "limits.max_model_len", fits, most, limits.max_model_len


def _check_ids(manifest: Manifest) -> None:
    catalog = manifest.catalog
    tables: Mapping[str, Iterable[object]] = {
        "graphs": (graph.id for graph in catalog.graphs),
        "kernels": (kernel.id for kernel in catalog.kernels),
        "tuning": (record.key for record in catalog.tuning),
        "storage": (f"rank {tensor.rank}: {tensor.name}" for tensor in catalog.storage),
        "sections": (section.path for section in manifest.sections),
    }
    for table, ids in tables.items():
        for entry, count in Counter(ids).items():
            if count > 1:
                raise DuplicateIdError(f"{table}: {entry!r} is there {count} times")


def _check_graph(graph: Graph, manifest: Manifest) -> None:
    family = FAMILY_OF_KIND[graph.kind]
    if graph.family is not family:
        raise FamilyMismatchError(
            f"graphs.{graph.id}.family: a {graph.kind} graph is {family}, found {graph.family}"
        )
    if graph.device != manifest.identity.device:
        raise FamilyMismatchError(
            f"graphs.{graph.id}.device: expected {manifest.identity.device}, found {graph.device}"
        )
    needs_draft = graph.kind in (Kind.VERIFY, Kind.DRAFT)
    if needs_draft and graph.speculative == "off":
        raise FamilyMismatchError(
            f"graphs.{graph.id}.speculative: a {graph.kind} graph needs a method, found off"
        )
    if graph.kind in (Kind.DECODE, Kind.PREFILL) and graph.speculative != "off":
        raise FamilyMismatchError(
            f"graphs.{graph.id}.speculative: a {graph.kind} graph serves any method, expected off, "
            f"found {graph.speculative}"
        )
    least, most = _max_q(graph)
    if not least <= graph.max_q <= most:
        expected = f"{least}" if least == most else f"{least} to {most}"
        raise FamilyMismatchError(
            f"graphs.{graph.id}.max_q: expected {expected} for a {graph.kind} graph, "
            f"found {graph.max_q}"
        )


def _max_q(graph: Graph) -> tuple[int, int]:
    """The fewest and most rows of a decoding sequence that the kind allows."""
    rows = max(1, graph.domain.tokens)
    if graph.kind is Kind.VERIFY:
        return 2, max(2, rows)
    drafts = graph.kind is Kind.MIXED and graph.speculative != "off"
    return 1, rows if drafts else 1


def _check_references(catalog: Catalog) -> None:
    kernels = {kernel.id for kernel in catalog.kernels}
    tuning = {record.key for record in catalog.tuning}
    layouts = {tensor.name for tensor in catalog.storage}
    graphs = {graph.id for graph in catalog.graphs}
    for graph in catalog.graphs:
        where = f"graphs.{graph.id}"
        if graph.program not in catalog.programs:
            raise ProgramMissingError(f"{where}.program: {graph.program!r} is not in the core")
        _require(graph.kernels, kernels, f"{where}.kernels", KernelMissingError)
        _require(graph.tuning, tuning, f"{where}.tuning", TuningMissingError)
        _require(graph.layouts, layouts, f"{where}.layouts", LayoutMissingError)
    for record in catalog.tuning:
        where = f"tuning.{record.key}"
        candidates = [candidate.kernel for candidate in record.candidates]
        _require(candidates, kernels, f"{where}.candidates", KernelMissingError)
        _require([record.winner], candidates, f"{where}.winner", KernelMissingError)
        _require(record.depends_on, tuning, f"{where}.depends_on", TuningMissingError)
        if record.introduced_by is not None:
            introduced_by = [record.introduced_by]
            _require(introduced_by, graphs, f"{where}.introduced_by", DanglingReferenceError)
    unused = catalog.programs.keys() - {graph.program for graph in catalog.graphs}
    if unused:
        raise DanglingReferenceError(f"programs.{min(unused)}: no graph names this program")


def _require(
    names: Iterable[str],
    known: Collection[str],
    where: str,
    error: type[DanglingReferenceError],
) -> None:
    for name in names:
        if name not in known:
            raise error(f"{where}: {name!r} is not in the catalog")


def _check_cycles(catalog: Catalog) -> None:
    """Walk the dependencies depth first, without recursion; meeting an open key is a cycle."""
    edges = {record.key: record.depends_on for record in catalog.tuning}
    done: set[str] = set()
    for start in edges:
        path: dict[str, None] = {}
        stack = [(start, False)]
        while stack:
            key, leaving = stack.pop()
            if leaving:
                del path[key]
                done.add(key)
            elif key in path:
                circle = [*list(path)[list(path).index(key) :], key]
                raise DependencyCycleError(f"tuning.depends_on: {' -> '.join(circle)}")
            elif key not in done:
                path[key] = None
                stack.append((key, True))
                stack.extend((after, False) for after in edges[key])


def coverage_gaps(graphs: Iterable[Graph], seqs: int, tokens: int) -> list[str]:
    """Return what separate graphs do not take: decode batches of 1..seqs, chunks of 1..tokens.

    A graph takes every batch within its domain, so the largest one decides.
    """
    decode = prefill = 0
    for graph in graphs:
        domain = graph.domain
        if graph.kind is Kind.DECODE:
            decode = max(decode, min(domain.tokens, domain.seqs, domain.logits))
        elif graph.kind is Kind.PREFILL:
            prefill = max(prefill, domain.tokens)
    gaps = []
    if decode < seqs:
        gaps.append(f"decode graphs must take 1 to {seqs} sequences, the largest takes {decode}")
    if prefill < tokens:
        gaps.append(f"prefill graphs must take 1 to {tokens} tokens, the largest takes {prefill}")
    return gaps


def check_coverage(graphs: Iterable[Graph], limits: Limits) -> None:
    """Raise CapacityGapError when separate graphs do not take every batch within the limits."""
    gaps = coverage_gaps(graphs, limits.max_num_seqs, limits.max_step_tokens)
    if gaps:
        raise CapacityGapError(f"graphs: {gaps[0]}")
