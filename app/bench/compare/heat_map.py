"""The picture of a grid: where each leg is better, and where nothing is shown."""

from collections.abc import Iterator, Sequence

from app.bench.compare.analysis import Difference
from app.bench.compare.marks import side, spoken
from app.bench.compare.report import CellReport, Report
from app.bench.compare.svg import element, label, picture, text
from app.bench.compare.table import signed


def heat_map(report: Report, metric: str) -> str:
    """A cell for each prompt length and number of streams; hatched where nothing is shown."""
    found = [cell.find(metric) for cell in report.cells]
    shown = [abs(d.estimate) for d in found if d is not None and d.estimate is not None]
    most = max(shown, default=0.0) or 1.0
    columns = list(dict.fromkeys(cell.concurrency for cell in report.cells))
    rows = list(dict.fromkeys(cell.prompt_tokens for cell in report.cells))
    wide, tall, left, top = min(150.0, 720 / len(columns)), 54.0, 130.0, 40.0
    parts = [label("prompt tokens", 0, top - 10, class_="quiet")]
    for i, streams in enumerate(columns):
        x = left + wide * (i + 0.5)
        parts.append(
            label(
                f"{streams} {'stream' if streams == 1 else 'streams'}",
                x,
                top - 10,
                text_anchor="middle",
                class_="quiet",
            )
        )
    for row, length in enumerate(rows):
        y = top + tall * row
        parts.append(label(length, left - 14, y + tall / 2 + 4, text_anchor="end"))
    for cell, one in zip(report.cells, found, strict=True):
        x = left + wide * columns.index(cell.concurrency)
        y = top + tall * rows.index(cell.prompt_tokens)
        parts.extend(_square(report, cell, one, (x, y, wide, tall), most))
    title = f"{_title(found)}: where each leg is better"
    return picture(left + wide * len(columns) + 4, top + tall * len(rows) + 6, title, parts)


def _title(found: Sequence[Difference | None]) -> str:
    return next((d.title for d in found if d is not None), "")


def _square(
    report: Report,
    cell: CellReport,
    found: Difference | None,
    box: tuple[float, float, float, float],
    most: float,
) -> Iterator[str]:
    x, y, wide, tall = box
    better = found.better if found else None
    style = "open" if better is None else side(report, better)
    size = abs(found.estimate or 0.0) if found else 0.0
    words = f"{cell.name}: {spoken(found)}" if found else f"{cell.name}: not measured"
    yield element(
        "rect",
        element("title", text(words)),
        x=x + 1,
        y=y + 1,
        width=wide - 2,
        height=tall - 2,
        rx=4,
        class_=f"heat {style}",
        fill_opacity=1.0 if better is None else 0.18 + 0.5 * size / most,
    )
    value, weight = signed(found.estimate) if found else "-", "bold" if better else "normal"
    x, y = x + wide / 2, y + tall / 2
    yield label(value, x, y - 2, font_weight=weight, text_anchor="middle")
    yield label(better or "not shown", x, y + 15, text_anchor="middle", class_="small")
