"""Verdicts on figures that are known."""

import msgspec
import pytest

from app.bench.compare.analysis import corrected, decisive
from app.bench.compare.cells import load_cells
from app.bench.compare.report import build
from app.bench.compare.texts import Texts
from app.bench.compare.verdict import Legs, Seen, judge
from tests.support.comparisons import ask, grid_report, measured, plan, report, taken

LEGS = Legs(("separate", "mixed"), ("--no-mixed-prefill", "--mixed-prefill"))


def test_one_that_is_better_and_never_worse_is_chosen() -> None:
    verdict = report({"ttft_mean": 0.8, "gap_p99": 0.5}).verdict
    assert (verdict.kind, verdict.choice) == ("better", "mixed")
    assert verdict.sentence.startswith(
        "Serve this traffic with --mixed-prefill: with mixed, inter-token p99 is 50.0 % shorter ("
    )
    assert "first token mean is 20.0 % shorter" in verdict.sentence
    assert "measurably worse" in verdict.sentence and "\n" not in verdict.sentence


def test_separate_is_chosen_when_mixed_is_only_worse() -> None:
    verdict = report({"tok_s": 0.9}).verdict
    assert (verdict.kind, verdict.choice) == ("better", "separate")
    assert "--no-mixed-prefill: with mixed, throughput is 10.0 % lower" in verdict.sentence


def test_a_trade_off_chooses_nothing_and_names_both_sides() -> None:
    verdict = report({"tok_s": 0.9, "ttft_mean": 0.7}).verdict
    assert (verdict.kind, verdict.choice) == ("trade-off", None)
    assert "first token mean is 30.0 % shorter" in verdict.sentence
    assert "but throughput is 10.0 % lower" in verdict.sentence


def test_goodput_decides_a_trade_off_when_it_was_asked_for() -> None:
    cells = load_cells(plan(8))
    results = measured({cells[0].name: {"tok_s": 0.9, "ttft_mean": 0.7}})
    for one in results.taken:
        share = 1.3 if one.sample.leg == "mixed" else 1.0
        one.sample.figures["goodput"] = one.sample.figures["req_s"] * share
    chosen = build(ask(cells, asked=True), results, "", 1.0, None).verdict
    assert (chosen.kind, chosen.choice) == ("trade-off", "mixed")
    assert chosen.sentence.startswith("By your objective, serve this traffic with --mixed-prefill")
    unasked = build(ask(cells), results, "", 1.0, None).verdict
    assert unasked.choice is None


def test_equal_legs_show_no_difference() -> None:
    verdict = report().verdict
    assert (verdict.kind, verdict.choice) == ("none", None)
    assert "the core's default is as good" in verdict.sentence


def test_too_few_pairs_never_speak_for_a_leg() -> None:
    cells = load_cells(plan(8))
    results = measured({cells[0].name: {"tok_s": 0.5}}, pairs=3)
    found = build(ask(cells), results, "", 1.0, None)
    assert found.verdict.kind == "none"
    difference = found.cells[0].find("tok_s")
    assert difference is not None and difference.better is None
    assert difference.high is not None and difference.high < 0  # the interval alone would say so


@pytest.mark.parametrize("pairs", [0, 1])
def test_a_report_of_almost_nothing_is_a_report(pairs: int) -> None:
    cells = load_cells(plan(8))
    results = measured({cells[0].name: {}}, pairs)
    assert build(ask(cells), results, "", 1.0, None).verdict.kind == "none"
    told = build(ask(cells), results, "", 1.0, "interrupted")
    assert told.verdict.kind == "incomplete" and "interrupted" in told.verdict.sentence
    assert not told.complete


def test_texts_that_differ_and_failures_void_the_verdict() -> None:
    cells = load_cells(plan(8))
    results = measured({cells[0].name: {"tok_s": 2.0}})
    other = msgspec.structs.replace(results.taken[1], texts={0: "one", 1: "tree"})
    results.taken[1] = other
    found = build(ask(cells), results, "", 1.0, None)
    assert found.verdict.kind == "invalid"
    assert "1 of 20 answers differ" in found.verdict.sentence
    first = found.texts.first
    assert first is not None and (first.pair, first.request, first.position) == (0, 1, 1)
    assert first.excerpts == {"separate": "two", "mixed": "tree"}
    results.taken[1] = taken(cells[0].name, "mixed", 0, {}, failures=((1, "HTTP 500"),))
    found = build(ask(cells), results, "", 1.0, None)
    assert "1 requests failed" in found.verdict.sentence and found.verdict.kind == "invalid"


def test_cells_that_disagree_are_a_trade_off_with_their_names() -> None:
    cells = load_cells(plan(8, 32))
    factors = {cells[0].name: {"tok_s": 1.2}, cells[1].name: {"tok_s": 0.8}}
    verdict = build(ask(cells), measured(factors), "", 1.0, None).verdict
    assert verdict.kind == "trade-off"
    assert "for chat at 8" in verdict.sentence and "for chat at 32" in verdict.sentence


def test_a_heat_map_counts_its_cells() -> None:
    verdict = grid_report({(64, 2): 1.1, (64, 4): 1.2, (256, 4): 0.9}).verdict
    assert (verdict.kind, verdict.choice) == ("trade-off", None)
    assert "with separate in 1 and with mixed in 2 of 4 cells, 1 show no difference" in (
        verdict.sentence
    )
    alone = grid_report({(64, 2): 1.1}).verdict
    assert (alone.kind, alone.choice) == ("better", "mixed")


def test_nothing_measured_is_no_difference() -> None:
    assert judge([], LEGS, Texts(0, 0, None), 0).kind == "none"
    cell = report().cells[0]
    seen = [Seen(cell.name, d) for d in cell.differences if d.decides]
    assert judge(seen, LEGS, Texts(4, 0, None), 0).kind == "none"


def test_levels() -> None:
    assert corrected(0.95, 4) == pytest.approx(0.9875)
    assert len(decisive(True)) == len(decisive(False)) + 1
