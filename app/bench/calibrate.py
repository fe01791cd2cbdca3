"""Overheads of a forecast, from one short run of the server that it is of."""

from pathlib import Path

from msgspec import Struct

from app.bench.forecast import FAMILIES, OVERHEADS, STALL_SECONDS, simulated_requests
from app.bench.measure import Measured
from app.bench.workloads import Request
from engine.config import EngineConfig
from engine.simulation import Overheads, Simulated, Simulator
from engine.text.assets import folder_files, load_text

PROMPT_KINDS = ("prefill", "mixed")
LIMITS = (0.4, 2.5)
"""Of the factors: a run beyond them was disturbed, and says little about those that follow."""


class Probe(Struct, frozen=True):
    """One run of a family's server: what was sent, and what came back."""

    requests: tuple[Request, ...]
    measured: Measured


def calibrate(core: Path, family: str, probe: Probe) -> Overheads:
    """Return the overheads with which the family's forecast of the probe is as it was measured.

    Raises as ``Simulator``.
    """
    config = EngineConfig(core=core, mixed_prefill=FAMILIES[family], stall_seconds=STALL_SECONDS)
    tokenizer = load_text(folder_files(core / "text")).tokenizer
    load = simulated_requests(tokenizer, probe.requests)
    return fitted(
        Simulator(config, OVERHEADS).run(load, probe.measured.concurrency), probe.measured
    )


def fitted(foretold: Simulated, measured: Measured) -> Overheads:
    """Factors from the seconds of steps that the server counted; what of the run's time no step
    took is the steps' overhead, but for that of tokens, which is kept."""
    counted = measured.counters
    if counted is None or not counted.durations:
        return OVERHEADS
    took = counted.durations
    prompt = sum(took.get(kind, 0.0) for kind in PROMPT_KINDS)
    tokens = sum(answer.tokens for answer in measured.outcome.answers)
    beside = measured.outcome.seconds - sum(took.values()) - tokens * OVERHEADS.token
    return Overheads(
        OVERHEADS.request,
        min(max(beside / max(foretold.steps, 1), 0.0), 10 * OVERHEADS.step),
        OVERHEADS.token,
        _factor(took.get("decode", 0.0), foretold.device["decode"]),
        _factor(prompt, foretold.device["prompt"]),
    )


def _factor(measured: float, foretold: float) -> float:
    if not measured or not foretold:
        return 1.0
    low, high = LIMITS
    return min(max(measured / foretold, low), high)
