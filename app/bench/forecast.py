"""Forecasts: the figures of a load on each family of a core, from the core's step-time model."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from types import MappingProxyType

from app.bench.drive import Answer, Outcome
from app.bench.figures import Figures, figures
from app.bench.plan import Plan
from app.bench.stats import gaps
from app.bench.workloads import Request
from engine.config import EngineConfig
from engine.errors import SelectionError
from engine.simulation import (
    Overheads,
    Simulated,
    SimulatedRequest,
    Simulator,
)
from engine.text.assets import folder_files, load_text
from engine.text.tokenizer import Tokenizer

STALL_SECONDS = 0.08  # what a run has by default
OVERHEADS = Overheads(request=0.003, step=0.0003, token=0.00002)
"""Of ``flare run`` and ``flare bench`` on two cores that both share (docs/tuning.md)."""
FAMILIES = {"separate": False, "mixed": True}
DEFAULTS = MappingProxyType(dict.fromkeys(FAMILIES, OVERHEADS))


def forecast(
    core: Path, plan: Plan, concurrency: int, overheads: Mapping[str, Overheads] = DEFAULTS
) -> dict[str, Figures]:
    """Return each family's figures of a cell, by name as ``figures`` has them: medians of the
    plan's repeats. overheads: by family. A family that the core does not hold is left out.

    Raises StepTimesMissingError when the core holds no model of its steps' times, CoreError, and
    RequestError for requests that the core does not take.
    """
    tokenizer = load_text(folder_files(core / "text")).tokenizer
    warming = simulated_requests(tokenizer, plan.warming(concurrency))
    loads = [simulated_requests(tokenizer, plan.made(concurrency, i)) for i in range(plan.repeats)]
    found: dict[str, Figures] = {}
    for family, own in overheads.items():
        with suppress(SelectionError):
            runs = simulated(core, family, own, warming, loads, concurrency)
            outcomes = [outcome(load, run) for load, run in zip(loads, runs, strict=True)]
            found[family] = _medians([figures(one, plan.objective) for one in outcomes])
    return found


def simulated(
    core: Path,
    family: str,
    overheads: Overheads,
    warming: Sequence[SimulatedRequest],
    loads: Iterable[Sequence[SimulatedRequest]],
    concurrency: int,
) -> list[Simulated]:
    """Return the runs of all loads, one after another, on a server of that family that was warmed.

    Raises as ``forecast``, and SelectionError when the core does not hold the family.
    """
    config = EngineConfig(core=core, mixed_prefill=FAMILIES[family], stall_seconds=STALL_SECONDS)
    simulator = Simulator(config, overheads)
    simulator.run(warming, concurrency)
    return [simulator.run(load, concurrency) for load in loads]


def simulated_requests(tokenizer: Tokenizer, requests: Sequence[Request]) -> list[SimulatedRequest]:
    """Return a load as the simulator takes it."""
    return [
        SimulatedRequest(
            tuple(tokenizer.encode(request.prompt)), request.max_tokens, request.at, request.group
        )
        for request in requests
    ]


def outcome(load: Sequence[SimulatedRequest], run: Simulated) -> Outcome:
    """Return a simulated run as if it had been measured."""
    answers = tuple(
        Answer(
            i,
            answer.due,
            answer.arrivals[0],
            tuple(gaps(answer.arrivals)),
            len(request.prompt_ids),
            len(answer.arrivals),
            "",
        )
        for i, (request, answer) in enumerate(zip(load, run.answers, strict=True))
    )
    return Outcome(run.seconds, answers, ())


def _medians(found: Sequence[Figures]) -> Figures:
    return {name: median(run[name] for run in found) for name in found[0]}
