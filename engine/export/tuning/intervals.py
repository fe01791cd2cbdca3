"""Medians with intervals that assume nothing of the distribution, and choices that follow."""

from collections.abc import Sequence
from math import comb

from msgspec import Struct

LEVEL = 0.95
"""Chance that an interval holds the median."""
FEWEST = 6
"""Samples below which no interval has that level."""
LEAST_GAIN = 0.01
"""Share of the time that a candidate must save: less is not worth a choice."""


class Interval(Struct, frozen=True):
    """A median and the interval that holds it at ``LEVEL``, in the samples' unit."""

    low: float
    median: float
    high: float


class Decision(Struct, frozen=True):
    """The index of the option that wins (0 is the heuristic), and why, for people."""

    winner: int
    reason: str


def interval(samples: Sequence[float]) -> Interval:
    """Return the median and its interval: the k-th smallest and the k-th largest sample.

    k is the largest for which at most ``1 - LEVEL`` of all samples of n have their median outside:
    ``2 P(B(n, 1/2) < k) <= 0.05`` (David & Nagaraja, Order Statistics, section 7.1). Below
    ``FEWEST`` samples it is all that was seen. Raises ValueError for no samples.
    """
    if not samples:
        raise ValueError("an interval needs samples")
    ordered = sorted(samples)
    count = len(ordered)
    rank, tail = 0, 0.0
    while True:
        tail += comb(count, rank) / 2.0**count
        if 2 * tail > 1 - LEVEL:
            break
        rank += 1
    cut = max(rank - 1, 0)
    middle = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    return Interval(ordered[cut], middle, ordered[count - 1 - cut])


def decide(samples: Sequence[Sequence[float]]) -> Decision:
    """Choose among options by their samples; the first is the heuristic.

    Another wins only when its interval lies below the heuristic's and it saves ``LEAST_GAIN``.
    """
    found = [interval(option) for option in samples]
    best = min(range(len(found)), key=lambda i: (found[i].median, i))
    base = found[0]
    if best == 0:
        return Decision(0, "the heuristic is the fastest")
    gain = 1 - found[best].median / base.median
    few = min(len(samples[0]), len(samples[best])) < FEWEST
    if few or found[best].high >= base.low or gain < LEAST_GAIN:
        return Decision(0, "no candidate's interval lies below the heuristic's")
    return Decision(best, f"{100 * gain:.1f} % faster than the heuristic")


def settled(samples: Sequence[Sequence[float]]) -> bool:
    """Whether more samples are unlikely to change ``decide``: the best option's interval lies
    apart from the heuristic's, or no other option's reaches below the heuristic's."""
    if min(map(len, samples)) < FEWEST:
        return False
    base, *others = (interval(option) for option in samples)
    if not others:
        return base.high - base.low <= 0.04 * base.median
    best = min(others, key=lambda option: option.median)
    return best.high < base.low or all(option.low > base.high for option in others)
