"""Figures of one run: what they are called, their units, and which direction is better."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from app.bench.drive import Answer, Outcome
from app.bench.stats import percentile


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure. ``digits``: decimals shown."""

    name: str
    title: str
    unit: str
    higher_is_better: bool
    digits: int


@dataclass(frozen=True, slots=True)
class Objective:
    """What a request must keep to count as good: seconds to its first token, and of its gaps."""

    first_token: float
    gap: float

    def kept(self, answer: Answer) -> bool:
        """Whether the first token came in time, and no gap was longer."""
        return answer.wait <= self.first_token and max(answer.gaps, default=0.0) <= self.gap


TOKENS = Metric("tok_s", "output tokens", "tok/s", True, 1)
REQUESTS = Metric("req_s", "requests", "req/s", True, 2)
GOODPUT = Metric("goodput", "goodput", "req/s", True, 2)
FIRST_MEAN = Metric("ttft_mean", "first token mean", "ms", False, 0)
GAP_MEAN = Metric("gap_mean", "gap mean", "ms", False, 1)
_SPREAD = (("p50", "p50"), ("p90", "p90"), ("p99", "p99"), ("max", "max"))
FIRST_TOKEN = tuple(
    Metric(f"ttft_{name}", f"first token {shown}", "ms", False, 0) for name, shown in _SPREAD
)
GAP = tuple(Metric(f"gap_{name}", f"gap {shown}", "ms", False, 1) for name, shown in _SPREAD)
METRICS = (TOKENS, REQUESTS, GOODPUT, FIRST_MEAN, *FIRST_TOKEN, GAP_MEAN, *GAP)

Figures = dict[str, float]


def figures(outcome: Outcome, objective: Objective | None) -> Figures:
    """The figures of one run by name, latencies in milliseconds; goodput only with an objective.

    A gap is the time between two chunks of one stream. Raises ValueError when nothing was served.
    """
    answers = outcome.answers
    found = {
        TOKENS.name: sum(answer.tokens for answer in answers) / outcome.seconds,
        REQUESTS.name: len(answers) / outcome.seconds,
    }
    if objective is not None:
        good = sum(objective.kept(answer) for answer in answers)
        found[GOODPUT.name] = good / outcome.seconds
    found |= _spread(FIRST_MEAN, FIRST_TOKEN, waits(answers))
    between = all_gaps(answers)
    return found | _spread(GAP_MEAN, GAP, between) if between else found


def waits(answers: Iterable[Answer]) -> list[float]:
    """Seconds to the first token of every request."""
    return [answer.wait for answer in answers]


def all_gaps(answers: Iterable[Answer]) -> list[float]:
    """The gaps of every request, in seconds."""
    return [gap for answer in answers for gap in answer.gaps]


def _spread(mean: Metric, metrics: Sequence[Metric], seconds: Sequence[float]) -> Figures:
    ordered = sorted(seconds)
    percents = (50.0, 90.0, 99.0, 100.0)
    return {mean.name: 1000 * fmean(seconds)} | {
        metric.name: 1000 * percentile(ordered, percent)
        for metric, percent in zip(metrics, percents, strict=True)
    }
