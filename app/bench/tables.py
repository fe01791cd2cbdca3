"""Figures as tables for the terminal."""

import io
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console
from rich.table import Table

from app.bench.figures import METRICS, Metric
from app.bench.measure import Measured
from app.bench.serving import BenchRun
from app.bench.stats import median
from engine.simulation import Overheads


def bench_text(run: BenchRun, concurrency: Sequence[int], title: str) -> str:
    """Medians over the repeats: a column for each number of streams."""
    cells = {str(n): run.cell(n) for n in concurrency}
    return text_of([medians_table(cells, title)])


def medians_table(columns: Mapping[str, Sequence[Measured]], title: str) -> Table:
    """A row for each figure and counter that a column has, the median of its repeats."""
    table = Table(title=title, title_justify="left", box=None)
    table.add_column("")
    for name in columns:
        table.add_column(name, justify="right")
    for metric in METRICS:
        values = [values_of(repeats, metric) for repeats in columns.values()]
        if any(values):
            shown = (shown_value(metric, median(v)) if v else "-" for v in values)
            table.add_row(f"{metric.title}, {metric.unit}", *shown)
    for name, cells in _counted(list(columns.values())):
        table.add_row(name, *cells)
    return table


def values_of(repeats: Iterable[Measured], metric: Metric) -> list[float]:
    """A metric's value in every repeat that has it."""
    return [one.figures[metric.name] for one in repeats if metric.name in one.figures]


def shown_value(metric: Metric, value: float) -> str:
    """The number without its unit."""
    return f"{value:,.{metric.digits}f}"


def text_of(tables: Iterable[Table]) -> str:
    """Tables as text: as wide as the terminal, or 100 columns where there is none."""
    terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if terminal else 100
    out = io.StringIO()
    console = Console(file=out, width=max(60, width), force_terminal=terminal, highlight=False)
    for table in tables:
        console.print(table)
    return out.getvalue()


def _counted(columns: Sequence[Sequence[Measured]]) -> list[tuple[str, list[str]]]:
    """Rows of failures and, where every repeat has them, of a Flare server's counters: sums."""
    rows = [("failed requests", [str(sum(len(m.outcome.failures) for m in c)) for c in columns])]
    sums = [_sums(column) for column in columns]
    for name in dict.fromkeys(name for column in sums for name in column):
        rows.append((name, [f"{column.get(name, 0):,.0f}" for column in sums]))
    return rows


def _sums(column: Sequence[Measured]) -> dict[str, float]:
    found: dict[str, float] = {}
    for one in column:
        if one.counters is None:
            continue
        for kind, value in one.counters.launches.items():
            _add(found, f"{kind} launches", value)
        for kind, value in one.counters.padded.items():
            _add(found, f"{kind} padding, tokens", value)
        _add(found, "preemptions", one.counters.preemptions)
        _add(found, "prompt tokens from the cache", one.counters.prefix_hits)
    return found


def _add(found: dict[str, float], name: str, value: float) -> None:
    found[name] = found.get(name, 0.0) + value


def fit_text(overheads: Overheads) -> str:
    """What a forecast is made with beside the core's step times."""
    beside = f"{1000 * overheads.request:g} ms a request, {1000 * overheads.step:.2f} ms a step"
    return (
        f"steps take {overheads.decode:.2f} times the core's step times, with prompt rows "
        f"{overheads.prompt:.2f} times; beside them {beside}, {1000 * overheads.token:.2f} ms a "
        "token sent"
    )
