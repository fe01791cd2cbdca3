"""A report as tables for the terminal."""

from collections.abc import Iterable, Iterator

from rich.table import Table
from rich.text import Text

from app.bench.compare.analysis import Difference
from app.bench.compare.loading import Held
from app.bench.compare.report import CellReport, Report
from app.bench.tables import fit_text, text_of


def report_text(report: Report) -> str:
    """All tables and the verdict, which comes last: it is what stands above the prompt."""
    if report.setting.map_metric is not None:
        tables = [_heat_map(report)]
    else:
        tables = [_cell(report, cell) for cell in report.cells]
        tables += [_forecast(report, cell) for cell in report.cells if cell.forecast]
    said = "\n".join(_said(report))
    return f"{text_of([*tables, _loading(report)])}\n{said}\n\n{report.verdict.sentence}\n"


def signed(share: float | None) -> str:
    """A share as a signed percentage."""
    return "-" if share is None else f"{100 * share:+.1f} %"


def interval(found: Difference) -> str:
    """The ends of the interval as percentages."""
    if found.low is None or found.high is None:
        return "-"
    return f"{100 * found.low:+.1f} to {100 * found.high:+.1f}"


def amount(found: Difference, value: float) -> str:
    """The value with the metric's decimals."""
    return f"{value:,.{found.digits}f}"


def mebibytes(count: float | None) -> str:
    """Bytes in MiB; a dash where they are not known."""
    return "-" if count is None else f"{count / 2**20:,.1f} MiB"


def _cell(report: Report, cell: CellReport) -> Table:
    base, other = report.pair
    table = Table(title=_title(report, cell), title_justify="left", box=None)
    table.add_column("")
    for name in (base, other, f"{other} against {base}", "interval", "better"):
        table.add_column(name, justify="right")
    for found in cell.differences:
        mark = "*" if found.decides else ""
        table.add_row(
            f"{found.title}, {found.unit}{mark}",
            *(amount(found, found.medians[leg]) for leg in report.pair),
            signed(found.estimate),
            interval(found),
            Text(found.better or "", style="bold"),
        )
    for name, values in count_rows(report, cell):
        table.add_row(name, *values, "", "", "")
    return table


def forecast_rows(report: Report, cell: CellReport) -> list[list[str]]:
    """For each metric that was foretold: of each leg forecast, measurement, and how far off."""
    rows = []
    for found in cell.differences:
        told = [(cell.forecast or {}).get(leg, {}).get(found.metric) for leg in report.pair]
        if all(value is None for value in told):
            continue
        row = [f"{found.title}, {found.unit}"]
        for leg, value in zip(report.pair, told, strict=True):
            measured = found.medians[leg]
            off = None if value is None or not measured else value / measured - 1
            row.append("-" if value is None else amount(found, value))
            row += [amount(found, measured), signed(off)]
        rows.append(row)
    return rows


def forecast_heads(report: Report) -> list[str]:
    """Of the columns of ``forecast_rows``."""
    return [""] + [h for leg in report.pair for h in (f"{leg}, forecast", "measured", "off by")]


def fit_lines(cell: CellReport) -> list[str]:
    """What the forecast of each leg was made with."""
    if cell.fit is None:
        return []
    runs = f"fitted to {cell.fit.probes} short runs beside the counted ones"
    return [
        f"forecast of {cell.name}, {leg}: {fit_text(own)}; {runs}"
        for leg, own in cell.fit.overheads.items()
    ]


def _forecast(report: Report, cell: CellReport) -> Table:
    table = Table(title=f"\n{cell.name} streams: forecast", title_justify="left", box=None)
    for i, head in enumerate(forecast_heads(report)):
        table.add_column(head, justify="right" if i else "left")
    for row in forecast_rows(report, cell):
        table.add_row(*row)
    return table


def _title(report: Report, cell: CellReport) -> str:
    setting = report.setting
    return (
        f"{report.model.get('id', '')}, {cell.name} streams: medians of {setting.repeats} pairs of "
        f"{amount_sent(cell)}; * decides"
    )


def amount_sent(cell: CellReport) -> str:
    """What each server of a pair was sent."""
    return f"{cell.requests} requests in {cell.blocks} block{'s' if cell.blocks > 1 else ''}"


def count_rows(report: Report, cell: CellReport) -> Iterator[tuple[str, list[str]]]:
    """Rows of what the servers counted, sums over all pairs."""
    both = [cell.counted[leg] for leg in report.pair]
    kinds = dict.fromkeys(kind for one in both for kind in one.launches)
    for kind in kinds:
        yield f"{kind} launches", [f"{one.launches.get(kind, 0):,.0f}" for one in both]
    for kind in dict.fromkeys(kind for one in both for kind in one.padded):
        yield f"{kind} padding, tokens", [f"{one.padded.get(kind, 0):,.0f}" for one in both]
    yield "preemptions", [f"{one.preemptions:,.0f}" for one in both]
    yield "prompt tokens from the cache", [f"{one.prefix_hits:,.0f}" for one in both]
    yield "failed requests", [str(one.failures) for one in both]


def _heat_map(report: Report) -> Table:
    """A row for each prompt length, a column for each number of streams."""
    metric = report.setting.map_metric or ""
    columns = dict.fromkeys(cell.concurrency for cell in report.cells)
    base, other = report.pair
    first = report.cells[0].find(metric)
    title = f"{first.title if first else metric}: {other} against {base} (who is better)"
    table = Table(title=title, title_justify="left", box=None)
    table.add_column("prompt tokens", justify="right")
    for streams in columns:
        table.add_column(f"{streams} streams", justify="right")
    for length in dict.fromkeys(cell.prompt_tokens for cell in report.cells):
        row = [cell.find(metric) for cell in report.cells if cell.prompt_tokens == length]
        table.add_row(f"{length}", *map(_heat, row))
    return table


def _heat(found: Difference | None) -> str:
    if found is None:
        return "-"
    return f"{signed(found.estimate)} ({found.better or 'open'})"


def _loading(report: Report) -> Table:
    table = Table(title="\nloading and memory, medians", title_justify="left", box=None)
    legs = report.loading.legs
    for name in ("", *legs):
        table.add_column(name, justify="left" if not name else "right")
    for name, values in loading_rows(legs.values()):
        table.add_row(name, *values)
    return table


def loading_rows(legs: Iterable[Held]) -> list[tuple[str, list[str]]]:
    """Rows of what each leg's starts took and hold."""
    held = list(legs)
    return [
        ("starts", [str(one.starts) for one in held]),
        ("loading, s", [f"{one.load_s:.3f}" for one in held]),
        ("process start to ready, s", [f"{one.ready_s:.3f}" for one in held]),
        ("resident memory after loading", [mebibytes(one.resident_bytes) for one in held]),
        ("workspace taken", [mebibytes(one.workspace_bytes) for one in held]),
        ("held for graphs that are not selected", [f"{one.held_bytes:,} B" for one in held]),
        ("graphs retained", [str(sum(one.retained.values())) for one in held]),
        ("graphs pruned", [str(sum(one.pruned.values())) for one in held]),
    ]


def _said(report: Report) -> Iterator[str]:
    """Lines under the tables: texts, what cannot be read, what must be known."""
    yield texts_line(report)
    first = report.texts.first
    if first is not None:
        yield f"first difference: {first.cell}, pair {first.pair + 1}, request {first.request}, "
        yield f"after {first.position} letters:"
        yield from (f"  {leg}: {text!r}" for leg, text in first.excerpts.items())
    yield from power_line(report)
    for cell in report.cells:
        yield from fit_lines(cell)
    yield from report.notes


def texts_line(report: Report) -> str:
    """Whether the texts were equal."""
    texts = report.texts
    if texts.different:
        return f"{texts.different} of {texts.compared} answers DIFFER between the legs"
    return f"all {texts.compared} answers are the same, letter for letter, with either leg"


def power_line(report: Report) -> Iterator[str]:
    """Why there is no power, where there is none."""
    if report.power_absent is not None:
        yield f"power was not measured: {report.power_absent}"
