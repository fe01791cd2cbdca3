"""Intervals of medians by order statistics, and the choices that follow from them."""

import random

import pytest

from engine.export.tuning.intervals import Interval, decide, interval, settled


def test_ranks_are_those_of_the_tables() -> None:
    """Ranks of 95 % intervals of a median (Conover, Practical Nonparametric Statistics, A3)."""
    for count, rank in [(6, 1), (8, 1), (9, 2), (15, 4), (20, 6), (25, 8), (40, 14), (60, 22)]:
        found = interval([float(i) for i in range(count, 0, -1)])
        assert (found.low, found.high) == (rank, count + 1 - rank), count


def test_few_samples_give_all_that_was_seen() -> None:
    assert interval([3.0]) == Interval(3.0, 3.0, 3.0)
    assert interval([1.0, 9.0, 2.0, 4.0]) == Interval(1.0, 3.0, 9.0)
    with pytest.raises(ValueError, match="needs samples"):
        interval([])


def test_the_interval_holds_the_median_as_often_as_it_says() -> None:
    draw = random.Random(3)
    held = 0
    for _ in range(1000):
        found = interval([draw.lognormvariate(0, 1) for _ in range(20)])
        held += found.low <= 1.0 <= found.high
    assert held >= 940


def noisy(median: float, count: int = 20, seed: int = 0, spread: float = 0.02) -> list[float]:
    draw = random.Random(seed)
    return [median * (1 + abs(draw.gauss(0, spread))) for _ in range(count)]


def test_a_clear_gain_wins() -> None:
    decision = decide([noisy(1.0), noisy(0.99, seed=1), noisy(0.8, seed=2)])
    assert decision.winner == 2 and "faster than the heuristic" in decision.reason


@pytest.mark.parametrize(
    "other",
    [
        noisy(1.0, seed=5),  # noise
        noisy(0.7, count=5, seed=6),  # too few to say
        [0.2] * 8 + [1.2] * 12,  # fast at times
        [1.01 + value / 1e6 for value in noisy(1.0)],  # a real gain, too small to matter
        noisy(1.4, seed=7),
    ],
)
def test_what_is_not_clearly_better_leaves_the_heuristic(other: list[float]) -> None:
    assert decide([noisy(1.0), other]).winner == 0


def test_noise_seldom_wins() -> None:
    """Equal options, six of them: the first round alone must not be fooled often."""
    wins = sum(decide([noisy(1.0, seed=10 * s + i) for i in range(6)]).winner != 0
               for s in range(200))  # fmt: skip
    assert wins <= 4


def test_a_question_is_settled_when_intervals_part() -> None:
    assert settled([noisy(1.0), noisy(0.8, seed=1)])
    assert settled([noisy(1.0), noisy(1.3, seed=1), noisy(1.2, seed=2)])
    assert not settled([noisy(1.0), noisy(1.0, seed=1)])
    assert not settled([noisy(1.0, count=5), noisy(0.5, count=5)])
    assert settled([[1.0] * 9]) and not settled([[1.0, 2.0] * 6])
