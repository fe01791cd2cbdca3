"""Intervals of paired differences: known quantiles, coverage, what few pairs cannot show."""

import random

import pytest

from app.bench.stats import (
    bootstrap_mean,
    paired_difference,
    pairs_needed,
    student_quantile,
    student_within,
)


@pytest.mark.parametrize(
    ("freedom", "quantile"),  # of 0.975, from printed tables
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (7, 2.365), (10, 2.228), (30, 2.042)],
)
def test_student_quantiles_are_those_of_the_tables(freedom: int, quantile: float) -> None:
    assert student_quantile(0.975, freedom) == pytest.approx(quantile, abs=5e-4)
    assert student_within(quantile, freedom) == pytest.approx(0.95, abs=1e-4)


def test_an_interval_holds_the_true_mean_as_often_as_it_says() -> None:
    draw = random.Random(4)
    runs = [[draw.gauss(5, 2) for _ in range(10)] for _ in range(300)]
    held = sum(i.low <= 5 <= i.high for i in map(bootstrap_mean, runs))
    assert 0.91 * 300 <= held <= 0.99 * 300


def test_an_interval_narrows_with_more_values_and_a_lower_level() -> None:
    draw = random.Random(5)
    values = [draw.gauss(0, 1) for _ in range(40)]
    widths = [i.high - i.low for i in (bootstrap_mean(values[:10]), bootstrap_mean(values))]
    assert widths[1] < widths[0]
    lower = bootstrap_mean(values, 0.8)
    assert lower.high - lower.low < widths[1]
    assert bootstrap_mean(values) == bootstrap_mean(values)


def test_a_paired_difference_is_a_share_and_ignores_what_both_share() -> None:
    base = [100.0, 200.0, 50.0, 120.0, 80.0, 150.0]
    found = paired_difference([value + 5 for value in base], base)
    assert found is not None
    assert found.estimate == pytest.approx(5 / (sum(base) / 6))
    assert found.low == pytest.approx(found.high)  # the difference does not vary, the values do
    assert found.excludes_zero
    same = paired_difference(base, base)
    assert same is not None and not same.excludes_zero
    assert paired_difference([1.0, 2.0], [0.0, 0.0]) is None


def test_intervals_refuse_what_has_none() -> None:
    with pytest.raises(ValueError, match="no interval"):
        bootstrap_mean([1.0])
    with pytest.raises(ValueError, match="no interval"):
        bootstrap_mean([1.0, 2.0], 1.0)
    with pytest.raises(ValueError, match="zip"):
        paired_difference([1.0, 2.0], [1.0])


def test_the_fewest_pairs_follow_from_the_level() -> None:
    assert [pairs_needed(level) for level in (0.5, 0.95, 1 - 0.05 / 6)] == [2, 6, 8]
