"""Overheads of a forecast, from short runs of the servers that it is of."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from msgspec import Struct, structs

from app.bench.forecast import OVERHEADS, simulated, simulated_requests
from app.bench.measure import Measured
from app.bench.plan import Plan
from app.bench.workloads import Request
from engine.simulation import Overheads, Simulated
from engine.text.assets import folder_files, load_text

PROMPT_KINDS = ("prefill", "mixed")
LIMITS = (0.4, 2.5)
"""Of the factors: a run beyond them was disturbed, and says little about the others."""
ROUNDS = 3
"""Of fitting: slower steps are cut into other chunks, which take another time."""


class Probe(Struct, frozen=True):
    """One run of a family's server: what was sent, and what came back."""

    family: str
    requests: tuple[Request, ...]
    measured: Measured


def calibrate(
    core: Path, plan: Plan, concurrency: int, probes: Sequence[Probe]
) -> dict[str, Overheads]:
    """Return, by family, the overheads with which forecasts of the probes are as they were
    measured: one set for both, but that steps with prompt rows are graphs of each family's own.

    plan, concurrency: what the servers were warmed with. Raises as ``forecast.simulated``.
    """
    tokenizer = load_text(folder_files(core / "text")).tokenizer
    warming = simulated_requests(tokenizer, plan.warming(concurrency))
    own: dict[str, list[Probe]] = {probe.family: [] for probe in probes}
    for probe in probes:
        own[probe.family].append(probe)
    loads = {
        family: [simulated_requests(tokenizer, probe.requests) for probe in measured]
        for family, measured in own.items()
    }
    found = dict.fromkeys(own, OVERHEADS)
    for _ in range(ROUNDS):
        fits: dict[str, list[Overheads]] = {}
        for family, measured in own.items():
            runs = simulated(core, family, found[family], warming, loads[family], concurrency)
            pairs = zip(runs, measured, strict=True)
            fits[family] = [fitted(run, probe.measured) for run, probe in pairs]
        found = together(fits)
    return found


def together(fits: Mapping[str, Sequence[Overheads]]) -> dict[str, Overheads]:
    """The medians of all fits, of prompt factors by family: a few disturbed runs move none far."""
    every = [fit for own in fits.values() for fit in own]
    numbers = zip(*map(structs.astuple, every), strict=True)
    shared = Overheads(*(median(values) for values in numbers))
    return {
        family: structs.replace(shared, prompt=median(fit.prompt for fit in own))
        for family, own in fits.items()
    }


def fitted(foretold: Simulated, measured: Measured) -> Overheads:
    """Factors from the seconds of steps that the server counted; what of the run's time no step
    took is the steps' overhead."""
    counted = measured.counters
    if counted is None or not counted.durations:
        return OVERHEADS
    took = counted.durations
    prompt = sum(took.get(kind, 0.0) for kind in PROMPT_KINDS)
    beside = measured.outcome.seconds - sum(took.values())
    return Overheads(
        request=OVERHEADS.request,
        step=min(max(beside / max(foretold.steps, 1), 0.0), 10 * OVERHEADS.step),
        token=0.0,
        decode=_factor(took.get("decode", 0.0), foretold.device["decode"]),
        prompt=_factor(prompt, foretold.device["prompt"]),
    )


def _factor(measured: float, foretold: float) -> float:
    if not measured or not foretold:
        return 1.0
    low, high = LIMITS
    return min(max(measured / foretold, low), high)
