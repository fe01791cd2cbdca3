"""Forecasts to stand beside what was measured."""

from collections.abc import Sequence
from pathlib import Path

from app.bench.compare.cells import Cell

Forecast = dict[str, dict[str, float]]
"""By leg, then by name of metric, in that metric's unit."""


def forecasts(core: Path, cells: Sequence[Cell]) -> dict[str, Forecast]:
    """By name of cell; a cell is absent where the core holds no model of its steps' times."""
    return {}
