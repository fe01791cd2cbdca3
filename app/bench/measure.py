"""Measure one cell of a server: warm it, send a load, read its counters around it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.bench.client import Client
from app.bench.drive import Outcome, drive
from app.bench.endpoint import Counters, Endpoint
from app.bench.figures import Figures, figures
from app.bench.plan import Plan
from app.bench.stats import percentile
from engine.errors import FlareError

BODY: Mapping[str, object] = {"stream_options": {"include_usage": True}, "ignore_eos": True}


@dataclass(frozen=True, slots=True)
class Measured:
    """One repeat of one cell. ``counters``: how much a Flare server's grew meanwhile."""

    concurrency: int
    repeat: int
    outcome: Outcome
    figures: Figures
    counters: Counters | None

    def as_json(self) -> dict[str, Any]:
        """For the report; ``requests`` in the order of the workload."""
        counted = self.counters
        return {
            "concurrency": self.concurrency,
            "repeat": self.repeat,
            "seconds": self.outcome.seconds,
            "figures": self.figures,
            "graph_launches": None if counted is None else counted.launches,
            "padded_tokens": None if counted is None else counted.padded,
            "preemptions": None if counted is None else counted.preemptions,
            "prefix_cache_hit_tokens": None if counted is None else counted.prefix_hits,
            "requests": [
                {
                    "index": answer.index,
                    "due_s": answer.due,
                    "first_token_s": answer.wait,
                    "prompt_tokens": answer.prompt_tokens,
                    "tokens": answer.tokens,
                    "longest_gap_s": max(answer.gaps, default=None),
                    "median_gap_s": percentile(answer.gaps, 50) if answer.gaps else None,
                }
                for answer in self.outcome.answers
            ],
            "failures": [{"index": i, "error": why} for i, why in self.outcome.failures],
        }


async def warm(client: Client, plan: Plan, concurrency: int) -> None:
    """Send what is not measured, so that nothing is done for the first time afterwards."""
    check_served(await drive(client, plan.warming(concurrency), concurrency))


async def measure(
    client: Client, endpoint: Endpoint, plan: Plan, concurrency: int, repeat: int, ours: bool
) -> Measured:
    """One repeat. ``ours``: the server is Flare, and has counters.

    Raises FlareError when every request failed.
    """
    requests = plan.made(concurrency, repeat)
    before = await endpoint.counters() if ours else None
    outcome = await drive(client, requests, concurrency)
    grown = (await endpoint.counters()).since(before) if before is not None else None
    check_served(outcome)
    return Measured(concurrency, repeat, outcome, figures(outcome, plan.objective), grown)


def check_served(outcome: Outcome) -> None:
    """Raise FlareError when every request failed."""
    failures = outcome.failures
    if not outcome.answers:
        raise FlareError(f"all {len(failures)} requests failed; the first: {failures[0][1]}")
