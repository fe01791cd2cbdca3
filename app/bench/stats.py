"""Order statistics of small samples."""

from collections.abc import Iterable, Sequence
from itertools import pairwise


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
