"""The picture of paired differences and their intervals."""

from collections.abc import Iterator

from app.bench.compare.analysis import Difference
from app.bench.compare.marks import WIDTH, side, spoken
from app.bench.compare.report import CellReport, Report
from app.bench.compare.svg import element, label, picture, text
from app.bench.compare.table import interval, signed

ROW = 26.0
REACHES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)
"""Shares at the ends of the scale; intervals that reach further end there."""
PLOT = (250.0, 600.0)  # where the scale lies


def forest(report: Report, cell: CellReport) -> str:
    """Paired differences with their intervals; right of the middle, the second leg is better."""
    rows = [d for d in cell.differences if d.estimate is not None]
    ends = [abs(end) for d in rows for end in (d.low, d.high) if end is not None]
    reach = next(step for step in REACHES if step >= min(1.0, max([0.0, *ends])))
    bottom = 34 + ROW * len(rows)
    base, other = report.pair
    middle = sum(PLOT) / 2
    parts = [
        label(f"\u2190 {base} is better", PLOT[0], 14, class_="quiet"),
        label(f"{other} is better \u2192", PLOT[1], 14, class_="quiet", text_anchor="end"),
        element("line", x1=middle, x2=middle, y1=22, y2=bottom, class_="axis"),
    ]
    for i, found in enumerate(rows):
        parts.extend(_interval(report, found, 34 + ROW * i, reach))
    for share in (-reach, -reach / 2, reach / 2, reach):
        x = _place(share, reach)
        parts.append(element("line", x1=x, x2=x, y1=22, y2=bottom, class_="grid"))
        parts.append(
            label(f"{100 * abs(share):.3g} %", x, bottom + 16, class_="quiet", text_anchor="middle")
        )
    title = f"{cell.name}: differences of {other} against {base}, with intervals"
    return picture(WIDTH, bottom + 24, title, parts, "; ".join(map(spoken, rows)))


def _place(share: float, reach: float) -> float:
    middle, half = sum(PLOT) / 2, (PLOT[1] - PLOT[0]) / 2
    return middle + half * max(-1.0, min(1.0, share / reach))


def _interval(report: Report, found: Difference, top: float, reach: float) -> Iterator[str]:
    """One row: name, interval with its middle, numbers. The mark's shape says who is better."""
    assert found.estimate is not None and found.low is not None and found.high is not None
    sign = 1 if found.higher_is_better else -1
    low, high = sorted((sign * found.low, sign * found.high))
    x, y = _place(sign * found.estimate, reach), top + ROW / 2
    style = "open" if found.better is None else side(report, found.better)
    weight = "bold" if found.decides else "normal"
    yield label(found.title, 0, y + 4, font_weight=weight)
    line = {"x1": _place(low, reach), "x2": _place(high, reach), "y1": y, "y2": y}
    tip = element("title", text(spoken(found)))
    yield element("line", tip, class_=f"reach {style}", **line)
    if found.better is None:
        yield element("circle", cx=x, cy=y, r=4.5, class_=style)
    else:
        yield element("path", d=_mark(style, x, y), class_=style)
    yield label(f"{signed(found.estimate)}  ({interval(found)})", PLOT[1] + 14, y + 4)


def _mark(style: str, x: float, y: float) -> str:
    """A square for the base, a diamond for the other leg."""
    if style == "base":
        return f"M{x - 5:.1f} {y - 5:.1f}h10v10h-10z"
    return f"M{x:.1f} {y - 7:.1f}l7 7l-7 7l-7 -7z"
