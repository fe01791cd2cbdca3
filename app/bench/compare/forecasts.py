"""Forecasts to stand beside what was measured."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from app.bench.calibrate import Probe, calibrate
from app.bench.compare.cells import Cell
from app.bench.forecast import forecast
from engine.errors import RequestError
from engine.simulation import StepTimesMissingError

Forecast = dict[str, dict[str, float]]
"""By leg, then by name of metric, in that metric's unit."""
REPEATS = 3
"""Forecasts that a figure is the median of."""


def forecasts(
    core: Path, cells: Sequence[Cell], probes: Mapping[str, Probe]
) -> dict[str, Forecast]:
    """By name of cell; nothing where the core holds no model of its steps' times, and none of a
    cell that it cannot take. ``probes``, by leg, calibrate it to the machine as it is now."""
    found = {}
    try:
        fitted = {leg: calibrate(core, leg, probe) for leg, probe in probes.items()}
    except (StepTimesMissingError, RequestError):
        fitted = {}
    for cell in cells:
        plan = replace(cell.plan, repeats=REPEATS)
        try:
            found[cell.name] = forecast(core, plan, cell.concurrency, of_family=fitted)
        except StepTimesMissingError:
            return {}
        except RequestError:
            continue
    return found
