"""A run as Markdown."""

from collections.abc import Callable, Iterable, Sequence

from app.bench.figures import Metric
from benchmarks.serving.metrics import METRICS
from benchmarks.serving.results import Entry, Run


def markdown(run: Run) -> str:
    """The whole report: facts, medians with ratios, best rounds, servers, failures."""
    sections = [
        f"# Serving, side by side: {run.date[:10]}",
        _facts(run),
        "## Medians\n\n" + _medians(run),
        "## Best rounds\n\n" + _table(run, run.best),
        "## Servers\n\n" + _servers(run),
        _failures(run),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _facts(run: Run) -> str:
    lines = [f"- {name}: {value}" for name, value in {**run.machine, **run.settings}.items()]
    return "\n".join([f"- date: {run.date}", *lines])


def _medians(run: Run) -> str:
    ours = [entry for entry in run.entries if entry.ours]
    titles = ["best peer", *(f"{entry.name.removeprefix('Flare ')} / best peer" for entry in ours)]
    note = (
        "The last columns say how many times better Flare's median is than the best peer's, "
        "whichever way the metric points; below 1 it is worse."
    )
    return f"{_table(run, run.median, titles, lambda metric: _ratios(run, ours, metric))}\n\n{note}"


def _ratios(run: Run, ours: Sequence[Entry], metric: Metric) -> list[str]:
    peer = run.best_peer(metric)
    ratios = [run.ratio(entry.name, metric) for entry in ours]
    shown = ["-" if ratio is None else f"**{ratio:.2f}**" for ratio in ratios]
    return [peer[0] if peer else "-", *shown]


def _table(
    run: Run,
    value: Callable[[str, Metric], float | None],
    more_titles: Sequence[str] = (),
    more: Callable[[Metric], list[str]] = lambda _: [],
) -> str:
    """Metrics by servers, with further columns after them."""
    rows = [["metric", *(entry.name for entry in run.entries), *more_titles]]
    for metric in METRICS:
        cells = [_cell(entry, metric, value(entry.name, metric)) for entry in run.entries]
        if any(cell not in ("-", "not installed") for cell in cells):
            rows.append([f"{metric.title}, {metric.unit}", *cells, *more(metric)])
    return rows_of(rows)


def _cell(entry: Entry, metric: Metric, value: float | None) -> str:
    if not entry.installed:
        return "not installed"
    return "-" if value is None else f"{value:,.{metric.digits}f}"


def rows_of(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first row is its head."""
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _servers(run: Run) -> str:
    head = ["server", "version", "weights", "command"]
    rows = [[e.name, _version(e), e.weights, f"`{e.command}`"] for e in run.entries]
    return rows_of([head, *rows])


def _version(entry: Entry) -> str:
    return entry.version if entry.installed else "not installed"


def _failures(run: Run) -> str:
    lines: Iterable[str] = [
        f"- {sample.server}, {sample.scenario}, round {sample.round + 1}: {sample.error}"
        for sample in run.failures()
    ]
    text = "\n".join(lines)
    return f"## Failures\n\n{text}" if text else ""
