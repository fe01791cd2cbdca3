"""What one run of one cell on one server gave, and the figures that only a comparison has."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from msgspec import Struct

from app.bench.compare.stalls import Gaps, tagged
from app.bench.drive import Answer
from app.bench.figures import (
    FIRST_MEAN,
    FIRST_TOKEN,
    GAP,
    GAP_MEAN,
    GOODPUT,
    REQUESTS,
    Figures,
    Metric,
)
from app.bench.measure import Measured
from app.bench.stats import percentile

THROUGHPUT = Metric("tok_s", "throughput", "tok/s", True, 1)
STEADY = Metric("gap_steady_p50", "inter-token, steady p50", "ms", False, 1)
STALL = Metric("gap_stall_p50", "inter-token, stall p50", "ms", False, 1)
STALL_99 = Metric("gap_stall_p99", "inter-token, stall p99", "ms", False, 1)
STALLED = Metric("gap_stall_share", "gaps that are stalls", "%", False, 1)
ENERGY = Metric("joules_per_token", "energy", "J/token", False, 2)
WATTS = Metric("watts", "power", "W", False, 1)
PEAK = Metric("peak_mib", "peak memory", "MiB", False, 1)
_GAPS = tuple(replace(m, title=m.title.replace("gap", "inter-token")) for m in (GAP_MEAN, *GAP))
METRICS = (
    THROUGHPUT,
    REQUESTS,
    GOODPUT,
    FIRST_MEAN,
    *FIRST_TOKEN,
    *_GAPS,
    STEADY,
    STALL,
    STALL_99,
    STALLED,
    ENERGY,
    WATTS,
    PEAK,
)
BY_NAME = {metric.name: metric for metric in METRICS}


class Sample(Struct, frozen=True, kw_only=True):
    """One run of one cell. pair: which pair it belongs to; order: its place in that pair, from 0.

    blocks: seconds of each. launches, padded: by kind of graph. figures: by name of metric.
    joules: None where there is no meter.
    """

    cell: str
    leg: str
    pair: int
    order: int
    seconds: float
    blocks: tuple[float, ...]
    requests: int
    figures: dict[str, float]
    launches: dict[str, float]
    padded: dict[str, float]
    preemptions: float
    prefix_hits: float
    joules: float | None
    failures: tuple[tuple[int, str], ...]


class Taken(Struct, frozen=True):
    """A sample with what the report sums up: texts by request, and gaps."""

    sample: Sample
    texts: Mapping[int, str]
    gaps: Gaps


class Place(Struct, frozen=True):
    """Where a run stands in the comparison."""

    cell: str
    leg: str
    pair: int
    order: int


def taken(
    place: Place,
    measured: Measured,
    blocks: tuple[float, ...],
    joules: float | None,
    peak: int | None,
) -> Taken:
    """The sample of one measured run; ``peak``: bytes of the process at most so far."""
    answers, counted = measured.outcome.answers, measured.counters
    assert counted is not None  # the server is ours
    gaps = tagged(answers)
    seconds = measured.outcome.seconds
    figures = measured.figures | _tags(gaps) | _power(answers, joules, seconds)
    if peak is not None:
        figures[PEAK.name] = peak / 2**20
    sample = Sample(
        cell=place.cell,
        leg=place.leg,
        pair=place.pair,
        order=place.order,
        seconds=seconds,
        blocks=blocks,
        requests=len(answers),
        figures=figures,
        launches=dict(counted.launches),
        padded=dict(counted.padded),
        preemptions=counted.preemptions,
        prefix_hits=counted.prefix_hits,
        joules=joules,
        failures=measured.outcome.failures,
    )
    return Taken(sample, {answer.index: answer.text for answer in answers}, gaps)


def _tags(gaps: Gaps) -> Figures:
    found: Figures = {}
    if gaps.steady:
        found[STEADY.name] = 1000 * percentile(gaps.steady, 50)
    if gaps.stalls:
        found[STALL.name] = 1000 * percentile(gaps.stalls, 50)
        found[STALL_99.name] = 1000 * percentile(gaps.stalls, 99)
    count = len(gaps.steady) + len(gaps.stalls)
    return found | {STALLED.name: 100 * len(gaps.stalls) / count} if count else found


def _power(answers: Sequence[Answer], joules: float | None, seconds: float) -> Figures:
    if joules is None:
        return {}
    tokens = sum(answer.tokens for answer in answers)
    return {ENERGY.name: joules / tokens, WATTS.name: joules / seconds}
