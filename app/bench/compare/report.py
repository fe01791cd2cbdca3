"""The report: a versioned record that holds all that was found, and what was measured for it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from app.bench.compare.analysis import (
    Counted,
    Difference,
    Histogram,
    counted,
    differences,
    histogram,
)
from app.bench.compare.cells import Cell
from app.bench.compare.forecasts import Fit, Forecast, Foretold
from app.bench.compare.loading import Loading, loading
from app.bench.compare.run import Comparison, Results
from app.bench.compare.samples import Sample, Taken
from app.bench.compare.server import Start
from app.bench.compare.texts import Texts, compare_texts
from app.bench.compare.verdict import Legs, Seen, Verdict, incomplete, judge, judge_grid
from app.bench.figures import Metric, Objective
from app.bench.machine import machine
from engine import __version__

FORMAT_VERSION = 2


class CellReport(Struct, frozen=True):
    """One cell. requests: of one run, sent in so many blocks. forecast, fit: by leg and metric, and
    what it was made with; None without a model."""

    name: str
    workload: str
    concurrency: int
    prompt_tokens: int | None
    requests: int
    blocks: int
    differences: tuple[Difference, ...]
    counted: dict[str, Counted]
    gaps: Histogram | None
    forecast: Forecast | None = None
    fit: Fit | None = None

    def find(self, metric: str) -> Difference | None:
        """The difference of that metric, where there is one."""
        return next((d for d in self.differences if d.metric == metric), None)


class Setting(Struct, frozen=True, kw_only=True):
    """How it was measured. repeats: pairs of servers. level: of each interval; confidence: of all
    that decide, together.

    variables: FLARE_ settings that were not at their defaults, in either server. asked: whether the
    objective was asked for, or is the one that is always reported. map_metric: of a heat map.
    """

    repeats: int
    confidence: float
    level: float
    decides: tuple[str, ...]
    seed: int
    rate: float | None
    objective: Objective | None
    asked: bool
    map_metric: str | None
    variables: dict[str, str]


class StartSample(Struct, frozen=True):
    """One start, as measured."""

    leg: str
    ready_s: float
    phases: dict[str, float]
    resident_bytes: int | None
    held_bytes: int


class Report(Struct, frozen=True, kw_only=True):
    """All of ``report.json``. legs: flags by name, the base first."""

    object: Literal["compare"] = "compare"
    format_version: int = FORMAT_VERSION
    complete: bool
    flare_version: str
    date: str
    seconds: float
    verdict: Verdict
    texts: Texts
    core: dict[str, Any]
    model: dict[str, Any]
    machine: dict[str, str]
    legs: dict[str, str]
    setting: Setting
    notes: tuple[str, ...]
    cells: tuple[CellReport, ...]
    loading: Loading
    power_absent: str | None
    samples: tuple[Sample, ...]
    starts: tuple[StartSample, ...]

    @property
    def pair(self) -> tuple[str, str]:
        """Names of base and other."""
        base, other = self.legs
        return base, other


class Ask(Struct, frozen=True, kw_only=True):
    """What a report needs to know of the question.

    decide: metrics that the verdict looks at. variables: as ``Setting`` has them.
    """

    comparison: Comparison
    decide: tuple[Metric, ...]
    confidence: float
    level: float
    asked: bool
    map_metric: str | None
    forecasts: Mapping[str, Foretold]
    variables: dict[str, str]


def build(ask: Ask, results: Results, date: str, seconds: float, error: str | None) -> Report:
    """The report of what was measured; ``error``: why it is not all, or None."""
    comparison = ask.comparison
    names = tuple(leg.name for leg in comparison.legs)
    flags = tuple(" ".join(leg.arguments) for leg in comparison.legs)
    legs = Legs((names[0], names[1]), (flags[0], flags[1]))
    cells = tuple(_cell(ask, cell, results.taken, names) for cell in comparison.cells)
    texts = compare_texts(results.taken, names)
    config = next(iter(results.configs.values()), {})
    return Report(
        complete=error is None,
        flare_version=__version__,
        date=date,
        seconds=seconds,
        verdict=_verdict(ask, cells, legs, texts, error),
        texts=texts,
        core=config.get("core", {"path": str(comparison.core)}),
        model=config.get("model", {}),
        machine=machine(),
        legs=dict(zip(names, flags, strict=True)),
        setting=_setting(ask),
        notes=notes(results.configs),
        cells=cells,
        loading=loading(results.starts, names),
        power_absent=comparison.meter.absent,
        samples=tuple(one.sample for one in results.taken),
        starts=tuple(_start(start) for start in results.starts),
    )


def notes(configs: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """What a reader must know: how the legs' limits differ beside the graphs."""
    found = []
    limits = {leg: config.get("scheduler", {}) for leg, config in configs.items()}
    for name in dict.fromkeys(key for limit in limits.values() for key in limit):
        values = {leg: limit.get(name) for leg, limit in limits.items()}
        if len(set(values.values())) > 1:
            shown = ", ".join(f"{value} ({leg})" for leg, value in values.items())
            hint = "; FLARE_KV_CACHE_MEMORY sets the cache of both" if name == "kv_blocks" else ""
            found.append(f"the servers differ in {name}: {shown}{hint}")
    return tuple(found)


def to_json(report: Report) -> str:
    """The text of ``report.json``."""
    return msgspec.json.format(msgspec.json.encode(report), indent=1).decode() + "\n"


def from_json(text: str) -> Report:
    """Read a report back. Raises msgspec.ValidationError for another format."""
    return msgspec.json.decode(text, type=Report)


def write_file(directory: Path, name: str, text: str) -> Path:
    """Write a file whole or not at all, beside its final name. Raises OSError."""
    path = directory / name
    partial = directory / f".{name}.partial"
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
    return path


def _cell(ask: Ask, cell: Cell, taken: Sequence[Taken], names: Sequence[str]) -> CellReport:
    own = [one for one in taken if one.sample.cell == cell.name]
    foretold = ask.forecasts.get(cell.name)
    parts = cell.blocks(0)
    return CellReport(
        cell.name,
        cell.plan.name,
        cell.concurrency,
        cell.prompt_tokens,
        sum(map(len, parts)),
        len(parts),
        differences(own, names, ask.level, ask.decide),
        {leg: counted(one for one in own if one.sample.leg == leg) for leg in names},
        histogram(own, names),
        foretold.figures if foretold else None,
        foretold.fit if foretold else None,
    )


def _verdict(
    ask: Ask, cells: Sequence[CellReport], legs: Legs, texts: Texts, error: str | None
) -> Verdict:
    if error is not None:
        return incomplete(error)
    seen = [Seen(cell.name, d) for cell in cells for d in cell.differences if d.decides]
    failed = sum(c.failures for cell in cells for c in cell.counted.values())
    judged = judge if ask.map_metric is None else judge_grid
    return judged(seen, legs, texts, failed)


def _setting(ask: Ask) -> Setting:
    plan = ask.comparison.cells[0].plan
    return Setting(
        repeats=ask.comparison.repeats,
        confidence=ask.confidence,
        level=ask.level,
        decides=tuple(metric.name for metric in ask.decide),
        seed=plan.seed,
        rate=plan.rate,
        objective=plan.objective,
        asked=ask.asked,
        map_metric=ask.map_metric,
        variables=ask.variables,
    )


def _start(start: Start) -> StartSample:
    return StartSample(
        start.leg, start.ready_s, start.phases, start.resident_bytes, start.held_bytes
    )
