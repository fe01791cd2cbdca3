"""Forecasts to stand beside what was measured."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from msgspec import Struct

from app.bench.calibrate import Probe, calibrate
from app.bench.compare.cells import Cell
from app.bench.forecast import forecast
from engine.errors import RequestError
from engine.simulation import Overheads, StepTimesMissingError

Forecast = dict[str, dict[str, float]]
"""By leg, then by name of metric, in that metric's unit."""


class Fit(Struct, frozen=True):
    """What a forecast was made with, by leg. probes: short runs that it was fitted to."""

    overheads: dict[str, Overheads]
    probes: int


class Foretold(Struct, frozen=True):
    """The forecast of a cell, and its fit."""

    figures: Forecast
    fit: Fit


def forecasts(
    core: Path,
    groups: Sequence[Sequence[Cell]],
    probes: Mapping[str, Sequence[Probe]],
    repeats: int,
) -> dict[str, Foretold]:
    """By name of cell, of the requests that were measured; nothing where the core holds no model
    of its steps' times, and none of a cell that it cannot take.

    probes: by name of the first cell of a group, what calibrates the forecasts of all of it.
    """
    found = {}
    for group in groups:
        first, own = group[0], probes.get(group[0].name, ())
        try:
            overheads = calibrate(core, first.plan, first.concurrency, own)
            for cell in group:
                block = len(cell.blocks(0)[0])
                plan = replace(cell.plan, repeats=repeats, requests=block)
                figures = forecast(core, plan, cell.concurrency, overheads)
                found[cell.name] = Foretold(figures, Fit(overheads, len(own)))
        except StepTimesMissingError:
            return {}
        except RequestError:
            continue
    return found
