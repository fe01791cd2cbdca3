"""From samples to paired differences: one for each cell and metric."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct

from app.bench.compare.samples import BY_NAME, METRICS, THROUGHPUT, Taken
from app.bench.figures import FIRST_MEAN, GAP_MEAN, GOODPUT, Metric
from app.bench.stats import Interval, median, paired_difference, pairs_needed

GAP_99 = BY_NAME["gap_p99"]
DECISIVE = (THROUGHPUT, FIRST_MEAN, BY_NAME[GAP_MEAN.name], GAP_99)
"""What a verdict looks at; goodput too, where an objective was asked for."""
BINS = 32


class Difference(Struct, frozen=True, kw_only=True):
    """One metric of one cell. medians, values: by leg; values: one for each pair.

    estimate, low, high: the mean of (other - base) over the pairs, as a share of the base's mean;
    None where that is no number. level: of confidence of that interval. better: the leg that the
    whole interval speaks for. decides: whether the verdict looks at it.
    """

    metric: str
    title: str
    unit: str
    digits: int
    higher_is_better: bool
    medians: dict[str, float]
    values: dict[str, tuple[float, ...]]
    level: float
    estimate: float | None
    low: float | None
    high: float | None
    better: str | None
    decides: bool


class Histogram(Struct, frozen=True):
    """Counts of gaps by leg, between edges in seconds; steady ones and stalls apart."""

    edges: tuple[float, ...]
    steady: dict[str, tuple[int, ...]]
    stalls: dict[str, tuple[int, ...]]


class Counted(Struct, frozen=True):
    """Sums over all pairs of what a leg's servers counted."""

    launches: dict[str, float]
    padded: dict[str, float]
    preemptions: float
    prefix_hits: float
    failures: int


def decisive(objective: bool) -> tuple[Metric, ...]:
    """The metrics that decide; ``objective``: whether one was asked for."""
    return (*DECISIVE, GOODPUT) if objective else DECISIVE


def corrected(confidence: float, looks: int) -> float:
    """The level of each of ``looks`` intervals, so that all hold together at ``confidence``.

    Bonferroni: the chance that any fails is at most the sum of the chances that each does.
    """
    return 1 - (1 - confidence) / looks


def differences(
    taken: Iterable[Taken], legs: Sequence[str], level: float, decide: Collection[Metric]
) -> tuple[Difference, ...]:
    """Of every metric that both legs have in some pair. ``taken``: of one cell."""
    pairs: dict[int, dict[str, Mapping[str, float]]] = {}
    for one in taken:
        pairs.setdefault(one.sample.pair, {})[one.sample.leg] = one.sample.figures
    whole = [pairs[number] for number in sorted(pairs) if len(pairs[number]) == len(legs)]
    found = []
    for metric in METRICS:
        both = [p for p in whole if all(metric.name in p[leg] for leg in legs)]
        if both:
            values = {leg: tuple(p[leg][metric.name] for p in both) for leg in legs}
            found.append(difference(metric, values, legs, level, metric in decide))
    return tuple(found)


def difference(
    metric: Metric,
    values: Mapping[str, tuple[float, ...]],
    legs: Sequence[str],
    level: float,
    decides: bool,
) -> Difference:
    """One metric; ``values``: by leg, pair by pair."""
    base, other = (values[leg] for leg in legs)
    interval = paired_difference(other, base, level) if len(base) > 1 else None
    return Difference(
        metric=metric.name,
        title=metric.title,
        unit=metric.unit,
        digits=metric.digits,
        higher_is_better=metric.higher_is_better,
        medians={leg: median(values[leg]) for leg in legs},
        values=dict(values),
        level=level,
        estimate=interval.estimate if interval else None,
        low=interval.low if interval else None,
        high=interval.high if interval else None,
        better=_better(interval, metric.higher_is_better, legs, len(base)),
        decides=decides,
    )


def _better(
    interval: Interval | None, higher_is_better: bool, legs: Sequence[str], pairs: int
) -> str | None:
    """The leg that the interval speaks for; None too when so few pairs cannot speak."""
    if interval is None or not interval.excludes_zero or pairs < pairs_needed(interval.level):
        return None
    return legs[(interval.estimate > 0) == higher_is_better]


def counted(taken: Iterable[Taken]) -> Counted:
    """Sums over the samples of one leg."""
    launches: dict[str, float] = {}
    padded: dict[str, float] = {}
    samples = [one.sample for one in taken]
    for sample in samples:
        for total, values in ((launches, sample.launches), (padded, sample.padded)):
            for kind, value in values.items():
                total[kind] = total.get(kind, 0.0) + value
    return Counted(
        launches,
        padded,
        sum(sample.preemptions for sample in samples),
        sum(sample.prefix_hits for sample in samples),
        sum(len(sample.failures) for sample in samples),
    )


def histogram(taken: Sequence[Taken], legs: Sequence[str]) -> Histogram | None:
    """The gaps of one cell over edges that grow by a constant factor; None without gaps."""
    every = [gap for one in taken for gap in (*one.gaps.steady, *one.gaps.stalls) if gap > 0]
    if not every:
        return None
    low = min(every)
    high = max(*every, 1.001 * low)
    factor = (high / low) ** (1 / BINS)
    edges = tuple(low * factor**i for i in range(BINS + 1))
    steady = {leg: [g for o in taken if o.sample.leg == leg for g in o.gaps.steady] for leg in legs}
    stalls = {leg: [g for o in taken if o.sample.leg == leg for g in o.gaps.stalls] for leg in legs}

    def binned(gaps: Iterable[float]) -> tuple[int, ...]:
        counts = [0] * BINS
        for gap in gaps:
            place = math.log(gap / low) / math.log(factor) if gap > low else 0.0
            counts[min(BINS - 1, int(place))] += 1
        return tuple(counts)

    return Histogram(
        edges,
        {leg: binned(gaps) for leg, gaps in steady.items()},
        {leg: binned(gaps) for leg, gaps in stalls.items()},
    )
