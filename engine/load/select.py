"""Selection: which captured graphs a run keeps. A pure function of catalog, request and limits."""

from collections.abc import Iterable

from msgspec import Struct

from engine.core.schema import Catalog, DeviceName, Family, Graph, Kind
from engine.core.validate import coverage_gaps
from engine.errors import SelectionError
from engine.types import Speculative

NOT_CAPTURED = "the core was exported without mixed graphs"
"""Key of the reason when a core has no mixed graph at all."""


class LoadLimits(Struct, frozen=True):
    """What this run allows: the core's limits, or lower ones, and the device it runs on.

    speculative, draft_tokens: the run's method and its draft tokens per step (0 when off).
    """

    max_num_seqs: int
    max_model_len: int
    max_step_tokens: int
    device: DeviceName = "cpu"
    speculative: Speculative = "off"
    draft_tokens: int = 0


class Selection(Struct, frozen=True):
    """The outcome. Ids are in catalog order.

    requested: the tri-state request (None: what the core says). family: MIXED when a mixed graph
    is retained. ineligible: graphs that this run could not use under any request, and why;
    they are among the pruned.
    """

    requested: bool | None
    family: Family
    retained: tuple[str, ...]
    pruned: tuple[str, ...]
    ineligible: tuple[tuple[str, str], ...] = ()


def select(
    catalog: Catalog, default_mixed: bool, requested: bool | None, limits: LoadLimits
) -> Selection:
    """Resolve the tri-state request against a validated catalog.

    Separate graphs that fit the device and the speculative setting are retained in every case,
    also those above the limits: a graph takes any batch within its capacity. Mixed graphs are
    retained when wanted and eligible. None with a core that says mixed keeps what is eligible,
    which may be nothing. Raises SelectionError, with a reason per graph, when mixed is asked for
    and no mixed graph is eligible, or when the separate graphs do not cover the limits.
    """
    reasons = {}
    for graph in catalog.graphs:
        reason = ineligible_because(graph, limits)
        if reason is not None:
            reasons[graph.id] = reason
    if len(reasons) == len(catalog.graphs):
        raise _none_eligible(reasons)
    mixed = [graph for graph in catalog.graphs if graph.family is Family.MIXED]
    if requested and all(graph.id in reasons for graph in mixed):
        raise _no_mixed(mixed, reasons)
    wanted = default_mixed if requested is None else requested
    kept = [
        graph
        for graph in catalog.graphs
        if graph.id not in reasons and (wanted or graph.family is not Family.MIXED)
    ]
    _check_complete(kept, limits, reasons)
    ids = {graph.id for graph in kept}
    return Selection(
        requested,
        Family.MIXED if any(graph.family is Family.MIXED for graph in kept) else Family.SEPARATE,
        tuple(graph.id for graph in kept),
        tuple(graph.id for graph in catalog.graphs if graph.id not in ids),
        tuple(reasons.items()),
    )


def ineligible_because(graph: Graph, limits: LoadLimits) -> str | None:
    """Return why this run could not use a graph, or None when it could."""
    if graph.device != limits.device:
        return f"captured for {graph.device}, this run uses {limits.device}"
    if graph.family is Family.MIXED and graph.domain.tokens > limits.max_step_tokens:
        return (
            f"takes {graph.domain.tokens} tokens, above this run's limit of "
            f"{limits.max_step_tokens} per step"
        )
    return _speculation_conflict(graph, limits)


def _speculation_conflict(graph: Graph, limits: LoadLimits) -> str | None:
    """Mixed, verify and draft graphs are captured for one method; the others serve any.

    Drafts of n-grams are rows of decode graphs, in steps without chunks: mixed graphs that are
    captured for none serve the other steps.
    """
    if graph.kind in (Kind.PREFILL, Kind.DECODE):
        return None
    if graph.kind is Kind.MIXED and (graph.speculative, limits.speculative) == ("off", "ngram"):
        return None
    if graph.speculative != limits.speculative:
        return f"captured for speculative {graph.speculative}, this run has {limits.speculative}"
    if graph.kind is not Kind.DRAFT and graph.max_q < 1 + limits.draft_tokens:
        return (
            f"takes {graph.max_q} rows per sequence, this run's {limits.draft_tokens} draft "
            f"tokens need {1 + limits.draft_tokens}"
        )
    return None


def decode_capacity(graphs: Iterable[Graph]) -> int:
    """Rows that the largest decode graph takes and gives logits of."""
    domains = [graph.domain for graph in graphs if graph.kind is Kind.DECODE]
    return max((min(domain.tokens, domain.logits) for domain in domains), default=0)


def _none_eligible(reasons: dict[str, str]) -> SelectionError:
    shared = "; ".join(sorted(set(reasons.values())))
    return SelectionError(
        f"no graph of the core can serve this run: every graph is {shared}",
        reasons,
        hint="leave out --device, or export a core for this device and these settings",
    )


def _no_mixed(mixed: Iterable[Graph], reasons: dict[str, str]) -> SelectionError:
    named = {graph.id: reasons[graph.id] for graph in mixed}
    listed = "; ".join(f"{graph}: {reason}" for graph, reason in named.items())
    return SelectionError(
        f"mixed prefill cannot be served: {listed or NOT_CAPTURED}",
        named,
        hint="leave out --mixed-prefill, or export the core again with --mixed-prefill",
    )


def _check_complete(kept: list[Graph], limits: LoadLimits, reasons: dict[str, str]) -> None:
    gaps = coverage_gaps(kept, limits.max_num_seqs, limits.max_step_tokens)
    if limits.speculative == "ngram":
        needed, rows = 1 + limits.draft_tokens, decode_capacity(kept)
        if rows < needed:
            gaps.append(
                f"{limits.draft_tokens} draft tokens need a decode graph of {needed} rows, "
                f"the largest takes {rows}"
            )
    elif limits.speculative != "off" and not any(graph.kind is Kind.VERIFY for graph in kept):
        gaps.append(f"speculative {limits.speculative} needs a verify graph, none is eligible")
    if not gaps:
        return
    listed = "; ".join([*gaps, *(f"{graph}: {reason}" for graph, reason in reasons.items())])
    raise SelectionError(
        f"the separate graphs cannot serve this run: {listed}",
        reasons,
        hint="export a core for this device and these settings",
    )
