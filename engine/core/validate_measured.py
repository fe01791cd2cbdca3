"""Validation of what an export measured: machines, step times, canaries, tuning samples."""

import re
from collections import Counter
from collections.abc import Collection

from engine.core.errors import DanglingReferenceError, DuplicateIdError, MeasurementInvalidError
from engine.core.schema import Canary, Candidate, Catalog, Graph, Kind, Manifest, StepTime

_DIGEST = re.compile(r"[0-9a-f]{64}")


def validate_measured(manifest: Manifest) -> None:
    """Check measured values against the graphs. Raises MeasurementInvalidError,
    DuplicateIdError or DanglingReferenceError."""
    catalog = manifest.catalog
    graphs = {graph.id: graph for graph in catalog.graphs}
    _check_unique(catalog)
    machines = {machine.id for machine in catalog.machines}
    for index, time in enumerate(catalog.step_times):
        where = f"step_times[{index}]"
        _check_known(time.graph, graphs, f"{where}.graph")
        _check_known(time.machine, machines, f"{where}.machine")
        _check_step_time(time, graphs[time.graph], manifest, where)
    seed = next((canary.seed for canary in catalog.canaries), 0)
    for canary in catalog.canaries:
        where = f"canaries.{canary.graph}"
        _check_known(canary.graph, graphs, f"{where}.graph")
        _check_canary(canary, graphs[canary.graph], manifest, where)
        if canary.seed != seed:
            raise MeasurementInvalidError(f"{where}.seed: expected {seed}, found {canary.seed}")
    for record in catalog.tuning:
        for candidate in record.candidates:
            _check_candidate(candidate, f"tuning.{record.key}.candidates.{candidate.kernel}")


def _check_unique(catalog: Catalog) -> None:
    points = [(t.graph, t.tokens, t.generated, t.context) for t in catalog.step_times]
    tables = {
        "machines": (machine.id for machine in catalog.machines),
        "canaries": (canary.graph for canary in catalog.canaries),
        "step_times": (" ".join(map(str, point)) for point in points),
    }
    for table, ids in tables.items():
        for entry, count in Counter(ids).items():
            if count > 1:
                raise DuplicateIdError(f"{table}: {entry!r} is there {count} times")


def _check_known(name: str, known: Collection[str], where: str) -> None:
    if name not in known:
        raise DanglingReferenceError(f"{where}: {name!r} is not in the catalog")


def _check_step_time(time: StepTime, graph: Graph, manifest: Manifest, where: str) -> None:
    domain, longest = graph.domain, manifest.limits.max_model_len
    prompt = time.tokens - time.generated
    rules = (
        ("tokens", 1 <= time.tokens <= domain.tokens, f"1 to {domain.tokens}"),
        ("generated", _carries(graph.kind, time), f"rows that a {graph.kind} graph carries"),
        ("generated", time.generated + (prompt > 0) <= domain.seqs, f"{domain.seqs} sequences"),
        ("context", max(1, prompt) <= time.context <= longest, f"up to {longest}"),
        ("seconds", 0 < time.low <= time.seconds <= time.high, "0 < low <= seconds <= high"),
        ("samples", time.samples >= 1, "1 or more"),
    )
    for key, holds, expected in rules:
        if not holds:
            raise MeasurementInvalidError(
                f"{where}.{key}: expected {expected}, found {getattr(time, key)}"
            )


def _carries(kind: Kind, time: StepTime) -> bool:
    if kind in (Kind.DECODE, Kind.DRAFT):
        return time.generated == time.tokens
    if kind is Kind.PREFILL:
        return time.generated == 0
    return 0 <= time.generated <= time.tokens


def _check_canary(canary: Canary, graph: Graph, manifest: Manifest, where: str) -> None:
    vocabulary = manifest.model.vocab_size
    rules = (
        ("seed", 0 <= canary.seed < 1 << 31, "0 to 2^31 - 1"),
        ("rows", 1 <= canary.rows <= graph.domain.logits, f"1 to {graph.domain.logits}"),
        ("digest", _DIGEST.fullmatch(canary.digest) is not None, "64 hexadecimal digits"),
        ("argmax", len(canary.argmax) == canary.rows, f"{canary.rows} token ids"),
        ("argmax", all(0 <= i < vocabulary for i in canary.argmax), f"ids below {vocabulary}"),
    )
    for key, holds, expected in rules:
        if not holds:
            raise MeasurementInvalidError(
                f"{where}.{key}: expected {expected}, found {getattr(canary, key)!r:.80}"
            )


def _check_candidate(candidate: Candidate, where: str) -> None:
    low, high = candidate.low, candidate.high
    if any(sample <= 0 for sample in candidate.samples):
        raise MeasurementInvalidError(f"{where}.samples: expected more than 0 seconds")
    if (low is None) != (high is None) or (
        low is not None and high is not None and not 0 < low <= high
    ):
        raise MeasurementInvalidError(
            f"{where}.low: expected an interval, or null twice, found {low} to {high}"
        )
