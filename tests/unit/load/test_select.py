"""Graph selection: none / enable / disable over cores with and without mixed graphs."""

import pytest
from msgspec.structs import replace

from engine.core.schema import Catalog, Family, Kind
from engine.errors import SelectionError
from engine.load.select import NOT_CAPTURED, LoadLimits, select
from tests.support.cores import CoreSpec, manifest, with_catalog

LIMITS = LoadLimits(4, 256, 32)
SEPARATE = ("decode-1", "decode-2", "decode-4", "prefill-8", "prefill-32")
MIXED = ("mixed-8", "mixed-32")

WITH_MIXED = manifest(CoreSpec()).catalog
WITHOUT_MIXED = manifest(CoreSpec(mixed=())).catalog
SPECULATIVE = manifest(CoreSpec(verify=(4,), draft_tokens=3)).catalog


@pytest.mark.parametrize(
    ("catalog", "default", "requested", "retained"),
    [
        (WITH_MIXED, True, None, SEPARATE + MIXED),
        (WITH_MIXED, False, None, SEPARATE),
        (WITH_MIXED, True, True, SEPARATE + MIXED),
        (WITH_MIXED, False, True, SEPARATE + MIXED),
        (WITH_MIXED, True, False, SEPARATE),
        (WITH_MIXED, False, False, SEPARATE),
        (WITHOUT_MIXED, True, None, SEPARATE),
        (WITHOUT_MIXED, False, None, SEPARATE),
        (WITHOUT_MIXED, True, False, SEPARATE),
        (WITHOUT_MIXED, False, False, SEPARATE),
    ],
)
def test_matrix(
    catalog: Catalog, default: bool, requested: bool | None, retained: tuple[str, ...]
) -> None:
    selection = select(catalog, default, requested, LIMITS)
    mixed = any(graph in MIXED for graph in retained)
    assert selection.requested is requested
    assert selection.family is (Family.MIXED if mixed else Family.SEPARATE)
    assert set(selection.retained) == set(retained)
    assert set(selection.retained) | set(selection.pruned) == {g.id for g in catalog.graphs}
    assert not set(selection.retained) & set(selection.pruned)
    assert selection.ineligible == ()


@pytest.mark.parametrize("default", [True, False])
def test_enable_without_captured_mixed_graphs_is_refused(default: bool) -> None:
    with pytest.raises(SelectionError, match="exported without mixed graphs") as caught:
        select(WITHOUT_MIXED, default, True, LIMITS)
    assert caught.value.exit_code == 4
    assert not caught.value.reasons and NOT_CAPTURED in str(caught.value)
    assert caught.value.hint


def test_mixed_graphs_above_the_limit_are_left_out() -> None:
    limits = replace(LIMITS, max_step_tokens=16)
    for requested in (None, True):
        selection = select(WITH_MIXED, True, requested, limits)
        assert selection.family is Family.MIXED
        assert set(selection.retained) == {*SEPARATE, "mixed-8"}
        assert [graph for graph, _ in selection.ineligible] == ["mixed-32"]
        assert "takes 32 tokens, above this run's limit of 16" in selection.ineligible[0][1]


def test_no_eligible_mixed_graph() -> None:
    limits = replace(LIMITS, max_step_tokens=4)
    selection = select(WITH_MIXED, True, None, limits)
    assert selection.family is Family.SEPARATE
    assert set(selection.retained) == set(SEPARATE)
    assert {graph for graph, _ in selection.ineligible} == set(MIXED)
    with pytest.raises(SelectionError) as caught:
        select(WITH_MIXED, True, True, limits)
    assert caught.value.reasons.keys() == set(MIXED)
    for graph, reason in caught.value.reasons.items():
        assert f"{graph}: {reason}" in str(caught.value)


def test_fewer_sequences_do_not_exclude_mixed_graphs() -> None:
    """A graph takes any batch within its capacity; only tokens per step bound a launch."""
    selection = select(WITH_MIXED, True, True, replace(LIMITS, max_num_seqs=1))
    assert set(selection.retained) == {*SEPARATE, *MIXED}


def test_another_device_is_refused_with_a_reason_per_graph() -> None:
    limits = replace(LIMITS, device="cuda")
    for requested in (None, False, True):
        with pytest.raises(SelectionError, match="captured for cpu, this run uses cuda") as caught:
            select(WITH_MIXED, True, requested, limits)
        assert {*SEPARATE, *MIXED} == caught.value.reasons.keys()
        assert caught.value.hint and "--device" in caught.value.hint


def test_mixed_graphs_of_another_device_only() -> None:
    graphs = tuple(
        replace(g, device="cuda") if g.kind is Kind.MIXED else g for g in WITH_MIXED.graphs
    )
    catalog = replace(WITH_MIXED, graphs=graphs)
    assert select(catalog, True, None, LIMITS).family is Family.SEPARATE
    with pytest.raises(SelectionError, match="mixed-8: captured for cuda, this run uses cpu"):
        select(catalog, True, True, LIMITS)


def test_speculation_selects_verify_graphs() -> None:
    off = select(SPECULATIVE, True, None, LIMITS)
    assert set(off.retained) == {*SEPARATE, *MIXED}
    assert dict(off.ineligible) == {"verify-4": "captured for speculative ngram, this run has off"}
    limits = replace(LIMITS, speculative="ngram", draft_tokens=3)
    on = select(SPECULATIVE, True, None, limits)
    assert set(on.retained) == {*SEPARATE, *MIXED, "verify-4"}
    assert on.family is Family.MIXED
    with pytest.raises(SelectionError, match="captured for speculative off, this run has mtp"):
        select(SPECULATIVE, True, True, replace(LIMITS, speculative="mtp", draft_tokens=1))


@pytest.mark.parametrize("draft_tokens", [4, 5])
def test_more_draft_tokens_than_captured_are_refused(draft_tokens: int) -> None:
    limits = replace(LIMITS, speculative="ngram", draft_tokens=draft_tokens)
    message = f"takes 4 rows per sequence, this run's {draft_tokens} draft tokens need"
    with pytest.raises(SelectionError, match=message):
        select(SPECULATIVE, True, None, limits)


def test_fewer_draft_tokens_are_fine() -> None:
    limits = replace(LIMITS, speculative="ngram", draft_tokens=2)
    assert "verify-4" in select(SPECULATIVE, True, False, limits).retained


def test_speculation_without_verify_graphs_is_refused() -> None:
    with pytest.raises(SelectionError, match="speculative mtp needs a verify graph"):
        select(WITH_MIXED, True, None, replace(LIMITS, speculative="mtp", draft_tokens=1))


def test_separate_graphs_must_be_complete() -> None:
    base = manifest(CoreSpec())
    for kind, message in (
        (Kind.DECODE, "decode graphs must take 1 to 4"),
        (Kind.PREFILL, "prefill graphs must take 1 to 32"),
    ):
        graphs = tuple(g for g in base.catalog.graphs if g.kind is not kind)
        catalog = with_catalog(base, graphs=graphs).catalog
        for requested in (None, False, True):
            with pytest.raises(SelectionError, match=message):
                select(catalog, True, requested, LIMITS)


def test_family_is_the_stored_tag() -> None:
    """A prefill graph with the shape of a mixed one is still separate."""
    graphs = tuple(
        replace(g, domain=next(x for x in WITH_MIXED.graphs if x.id == "mixed-32").domain)
        if g.id == "prefill-32"
        else g
        for g in WITH_MIXED.graphs
    )
    selection = select(replace(WITH_MIXED, graphs=graphs), True, False, LIMITS)
    assert "prefill-32" in selection.retained
    assert selection.family is Family.SEPARATE


def test_selection_is_pure() -> None:
    first = select(WITH_MIXED, True, None, LIMITS)
    assert select(WITH_MIXED, True, None, LIMITS) == first
