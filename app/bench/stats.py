"""Statistics of small samples: order statistics, and intervals of paired differences."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import atan, cos, pi, sin, sqrt
from statistics import NormalDist, fmean

import numpy as np

RESAMPLES = 20_000


def percentile(values: Iterable[float], percent: float) -> float:
    """The percentile with linear interpolation between the closest ranks.

    Raises ValueError when there are no values or ``percent`` is outside [0, 100].
    """
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    if not 0 <= percent <= 100:
        raise ValueError(f"not a percentage: {percent}")
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def median(values: Iterable[float]) -> float:
    """The middle value; the mean of the two middle ones of an even count."""
    return percentile(values, 50)


def best(values: Iterable[float], higher_is_better: bool) -> float:
    """The largest or the smallest value."""
    return max(values) if higher_is_better else min(values)


def gaps(times: Sequence[float]) -> list[float]:
    """Differences of consecutive times."""
    return [after - before for before, after in pairwise(times)]


def advantage(value: float, other: float, higher_is_better: bool) -> float:
    """How many times better ``value`` is than ``other``; below 1: worse."""
    return value / other if higher_is_better else other / value


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its confidence interval. ``level``: of confidence, such as 0.95."""

    estimate: float
    low: float
    high: float
    level: float

    @property
    def excludes_zero(self) -> bool:
        """Whether the whole interval lies on one side of zero."""
        return self.low > 0 or self.high < 0


def bootstrap_mean(values: Sequence[float], level: float = 0.95, seed: int = 0) -> Interval:
    """The mean with an expanded percentile bootstrap interval; the same for the same seed.

    The plain percentile interval is too narrow for few values: resampled means vary by
    sqrt((n - 1) / n) less than the mean does, and normal tails stand for those of Student's t.
    The percentiles are moved out to make up for both (Hesterberg, "What Teachers Should Know
    About the Bootstrap", The American Statistician 69, 2015, section 3.2).
    Raises ValueError for fewer than two values or a level outside (0, 1).
    """
    count = len(values)
    if count < 2 or not 0 < level < 1:
        raise ValueError(f"no interval of {count} values at level {level}")
    data = np.asarray(values, np.float64)
    draws = np.random.default_rng(seed).integers(0, count, (RESAMPLES, count))
    means = data[draws].mean(axis=1)
    spread = sqrt(count / (count - 1)) * student_quantile((1 + level) / 2, count - 1)
    tail = 100 * NormalDist().cdf(-spread)
    low, high = np.percentile(means, [tail, 100 - tail])
    return Interval(fmean(values), float(low), float(high), level)


def paired_difference(
    values: Sequence[float], others: Sequence[float], level: float = 0.95
) -> Interval | None:
    """The mean of ``value - other`` over pairs, as a share of the mean of ``others``.

    None when that mean is not positive. Raises ValueError for lists that do not pair up, and as
    ``bootstrap_mean``.
    """
    differences = [value - other for value, other in zip(values, others, strict=True)]
    base = fmean(others)
    return bootstrap_mean([d / base for d in differences], level) if base > 0 else None


def pairs_needed(level: float) -> int:
    """The fewest pairs that can show a difference at this level.

    All n differences have one sign by chance with probability 2 * 2^-n; below that number, no
    interval that goes by the values alone holds its level.
    """
    pairs = 2
    while 2.0 ** (1 - pairs) > 1 - level:
        pairs += 1
    return pairs


def student_quantile(probability: float, freedom: int) -> float:
    """The quantile of Student's t for ``probability`` in [0.5, 1), by bisection."""
    low, high = 0.0, 1.0
    while student_within(high, freedom) < 2 * probability - 1:
        low, high = high, 2 * high
    for _ in range(80):
        middle = (low + high) / 2
        below = student_within(middle, freedom) < 2 * probability - 1
        low, high = (middle, high) if below else (low, middle)
    return high


def student_within(t: float, freedom: int) -> float:
    """P(-t < T < t) for whole degrees of freedom: Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    angle = atan(t / sqrt(freedom))
    odd = freedom % 2
    term, total = (cos(angle) if odd else 1.0), 0.0
    for k in range(2 + odd, freedom + 1, 2):
        total += term
        term *= cos(angle) ** 2 * (k - 1) / k
    if odd:
        return 2 / pi * (angle + sin(angle) * total)
    return sin(angle) * total
