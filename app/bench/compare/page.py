"""A report as one self-contained page: no script, nothing from outside."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from app.bench.compare.analysis import DECISIVE, Difference
from app.bench.compare.forest import forest
from app.bench.compare.gap_chart import gap_chart
from app.bench.compare.heat_map import heat_map
from app.bench.compare.marks import patterns, side
from app.bench.compare.report import CellReport, Report
from app.bench.compare.samples import BY_NAME
from app.bench.compare.svg import element, text
from app.bench.compare.table import (
    amount,
    amount_sent,
    count_rows,
    fit_lines,
    forecast_heads,
    forecast_rows,
    interval,
    loading_rows,
    power_line,
    signed,
    texts_line,
)

STYLE = Path(__file__).with_name("page.css")
POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page(report: Report) -> str:
    """The text of ``report.html``."""
    title = f"Flare: {' or '.join(report.pair[::-1])}? {report.model.get('id', '')}"
    head = (
        '<meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        + element("title", text(title))
        + element("style", STYLE.read_text(encoding="utf-8"))
    )
    body = patterns() + element("main", "".join(_sections(report, title)))
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{body}</body></html>\n'


def _sections(report: Report, title: str) -> Iterator[str]:
    yield element("h1", text(title))
    yield _verdict(report)
    yield _key(report)
    if report.setting.map_metric is not None:
        yield from _maps(report, report.setting.map_metric)
    for cell in report.cells:
        yield from _cell(report, cell)
    yield from _loading(report)
    yield from _texts(report)
    yield from _setting(report)


def _maps(report: Report, metric: str) -> Iterator[str]:
    """The map that decides, and behind a click those of the other usual metrics."""
    yield element("h2", text(f"Where each is better: {BY_NAME[metric].title}"))
    yield element("p", text(_MAP.format(*report.pair[::-1])), class_="quiet")
    yield element("div", heat_map(report, metric), class_="scroll")
    others = [other for other in DECISIVE if other.name != metric]
    maps = (
        element("h3", text(other.title))
        + element("div", heat_map(report, other.name), class_="scroll")
        for other in others
    )
    titles = ", ".join(other.title for other in others)
    yield element("details", element("summary", text(f"Also: {titles}")) + "".join(maps))


_MAP = (
    "Differences of {} against {}: the name in a cell is the one that is better there. In hatched "
    "cells the interval holds zero: nothing is shown."
)


def _verdict(report: Report) -> str:
    verdict = report.verdict
    if verdict.kind in ("invalid", "incomplete"):
        style = "fault"
    else:
        style = side(report, verdict.choice) if verdict.choice else "open-choice"
    words = element("b", "Verdict") + text(verdict.sentence)
    return element("p", words, class_=f"verdict {style}", role="status")


def _key(report: Report) -> str:
    """What marks and hatching mean."""
    base, other = report.pair
    box = {"viewBox": "0 0 14 14", "aria_hidden": "true"}
    signs = (
        ('<path d="M2 2h10v10h-10z" class="base"></path>', f"{base} is better"),
        ('<path d="M7 0l7 7l-7 7l-7 -7z" class="other"></path>', f"{other} is better"),
        ('<circle cx="7" cy="7" r="4.5" class="open"></circle>', "no difference shown"),
    )
    spans = [element("span", element("svg", sign, **box) + text(name)) for sign, name in signs]
    level = 100 * report.setting.confidence
    spans.append(text(f"all deciding intervals hold together at {level:g} % confidence"))
    return element("div", "".join(spans), class_="key")


def _cell(report: Report, cell: CellReport) -> Iterator[str]:
    heading = f"{cell.name} streams"
    inner = "".join(
        [
            element("div", forest(report, cell), class_="scroll"),
            element("h3", "Inter-token latency: steady (plain), stalls (hatched)"),
            element("p", _STALL, class_="quiet"),
            element("div", gap_chart(report, cell), class_="scroll"),
            _forecast(report, cell),
            _figures(report, cell),
        ]
    )
    if report.setting.map_metric is None:
        yield element("h2", text(heading)) + inner
    else:
        yield element("details", element("summary", text(heading)) + inner)


_STALL = (
    "A stall is a gap during which a prompt of another request was waiting or being computed, as "
    "seen by the client. Heights are shares of all gaps; dashed lines are medians over the pairs."
)


def _figures(report: Report, cell: CellReport) -> str:
    base, other = report.pair
    rows = [_row(found, report.pair) for found in cell.differences]
    for name, values in count_rows(report, cell):
        rows.append(("", [name, *values, "", "", ""]))
    heads = ["", base, other, f"{other} against {base}", "interval, %", "better"]
    caption = (
        f"Medians of {report.setting.repeats} pairs of {amount_sent(cell)} (counts: sums); "
        "bold decides"
    )
    return table(caption, heads, rows)


def _row(found: Difference, legs: Sequence[str]) -> tuple[str, list[str]]:
    values = [amount(found, found.medians[leg]) for leg in legs]
    cells = [f"{found.title}, {found.unit}", *values, signed(found.estimate), interval(found)]
    return "decides" if found.decides else "", [*cells, found.better or ""]


def _forecast(report: Report, cell: CellReport) -> str:
    """What the core's step times foretell, beside what was measured."""
    rows = [("", row) for row in forecast_rows(report, cell)]
    if not rows:
        return ""
    lines = "".join(element("p", text(line), class_="quiet") for line in fit_lines(cell))
    shown = table("", forecast_heads(report), rows)
    return element("h3", "Forecast and measurement") + shown + lines


def _loading(report: Report) -> Iterator[str]:
    yield element("h2", "What pruning saves")
    words = (
        "Serving separate loads none of the mixed graphs; serving mixed loads both families. A "
        "server that can switch while it runs holds room for either."
    )
    yield element("p", text(words), class_="quiet")
    legs = report.loading.legs
    rows = [("", [name, *values]) for name, values in loading_rows(legs.values())]
    yield table(
        "Medians over the starts, in memory of files that were read before", ["", *legs], rows
    )
    base, other = report.pair
    found = [_row(d, report.pair) for d in report.loading.differences]
    heads = ["", base, other, f"{other} against {base}", "95 % interval, %", "better"]
    if found:
        yield table("Start by start", heads, found)


def _texts(report: Report) -> Iterator[str]:
    yield element("h2", "Texts")
    yield element("p", text(texts_line(report)))
    first = report.texts.first
    if first is not None:
        where = f"{first.cell}, pair {first.pair + 1}, request {first.request}"
        yield element("p", text(f"First difference: {where}, after {first.position} letters."))
        both = "\n".join(f"{leg}: {excerpt!r}" for leg, excerpt in first.excerpts.items())
        yield element("pre", text(both))


def _setting(report: Report) -> Iterator[str]:
    yield element("h2", "Setting")
    setting = report.setting
    objective = setting.objective
    facts: dict[str, object] = {
        "core": f"{report.core.get('path', '')} ({str(report.core.get('digest', ''))[:16]})",
        "model": ", ".join(f"{name} {value}" for name, value in report.model.items()),
        "Flare": report.flare_version,
        "measured": f"{report.date}, in {report.seconds:.0f} s",
        "repeats": f"{setting.repeats} pairs of fresh servers side by side; both of a pair get the "
        "same requests, in turn block by block",
        "level": f"{100 * setting.level:.2f} % for each interval, which is "
        f"{100 * setting.confidence:g} % for all that decide",
        "seed": setting.seed,
    }
    if objective is not None:
        facts["objective"] = (
            f"first token within {objective.first_token:g} s, no gap above {objective.gap:g} s"
            + ("" if setting.asked else " (not asked for, decides nothing)")
        )
    facts |= {f"{leg} is": f"flare run CORE {flags}" for leg, flags in report.legs.items()}
    facts |= setting.variables | report.machine
    yield _list(facts)
    yield from (element("p", text(line)) for line in (*power_line(report), *report.notes))


def _list(facts: dict[str, object]) -> str:
    items = (element("dt", text(k)) + element("dd", text(v)) for k, v in facts.items())
    return element("dl", "".join(items))


def table(caption: str, heads: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]]) -> str:
    """A table; each row with the class of its line. The first column heads its row."""
    top = "".join(element("th", text(head), scope="col") for head in heads)
    lines = []
    for style, (first, *rest) in rows:
        cells = element("th", text(first), scope="row")
        last = len(rest) - 1
        for i, value in enumerate(rest):
            bold = heads[-1] == "better" and i == last
            cells += element("td", text(value), class_="better" if bold else "value")
        lines.append(element("tr", cells, class_=style) if style else element("tr", cells))
    said = element("caption", text(caption)) if caption else ""
    body = element("thead", element("tr", top)) + element("tbody", "".join(lines))
    return element("div", element("table", said + body), class_="scroll")
