"""The picture of inter-token latency: how the gaps of either leg are spread."""

import math
from collections.abc import Iterator
from itertools import pairwise

from msgspec import Struct

from app.bench.compare.analysis import Histogram
from app.bench.compare.marks import WIDTH, side
from app.bench.compare.report import CellReport, Report
from app.bench.compare.svg import element, label, picture, text

HEIGHT, STEP, LEFT, RIGHT = 96.0, 118.0, 90.0, WIDTH - 10


class _Panel(Struct, frozen=True):
    """One leg's half of the picture. scale: pixels for the share of all gaps."""

    leg: str
    style: str
    bottom: float
    scale: float


def gap_chart(report: Report, cell: CellReport) -> str:
    """How long gaps were, a panel for each leg: steady ones plain, stalls on top and hatched."""
    gaps = cell.gaps
    if gaps is None:
        return ""
    most = max(_share(gaps, leg, i) for leg in report.pair for i in range(len(gaps.edges) - 1))
    parts: list[str] = []
    for number, leg in enumerate(report.pair):
        panel = _Panel(leg, side(report, leg), (number + 1) * STEP, (HEIGHT - 4) / most)
        parts.extend(_bars(gaps, panel))
        parts.extend(_markers(cell, gaps, panel))
    foot = 2 * STEP + 18
    parts.extend(_scale(gaps, foot))
    title = f"{cell.name}: inter-token latency with either leg"
    return picture(WIDTH, foot + 6, title, parts, _gap_words(report, cell))


def _share(gaps: Histogram, leg: str, i: int) -> float:
    return (gaps.steady[leg][i] + gaps.stalls[leg][i]) / _total(gaps, leg)


def _total(gaps: Histogram, leg: str) -> int:
    return max(1, sum(gaps.steady[leg]) + sum(gaps.stalls[leg]))


def _bars(gaps: Histogram, panel: _Panel) -> Iterator[str]:
    """Name and axis, and for each bin a bar of two parts."""
    yield label(panel.leg, 0, panel.bottom - HEIGHT / 2, font_weight="bold")
    y = panel.bottom
    yield element("line", x1=LEFT, x2=RIGHT, y1=y, y2=y, class_="axis")
    total, width = _total(gaps, panel.leg), (RIGHT - LEFT) / (len(gaps.edges) - 1)
    for i, (low, high) in enumerate(pairwise(gaps.edges)):
        top = panel.bottom
        for name, counts in (("steady", gaps.steady), ("stall", gaps.stalls)):
            share = counts[panel.leg][i] / total
            if share:
                top -= panel.scale * share
                span = f"{1e3 * low:.1f} to {1e3 * high:.1f} ms"
                tip = f"{panel.leg}, {name}: {100 * share:.1f} % of gaps, {span}"
                place = {"x": LEFT + width * i + 0.5, "y": top, "width": max(1.0, width - 1)}
                inside = element("title", text(tip))
                look = f"{panel.style} {name}"
                yield element("rect", inside, height=panel.scale * share, class_=look, **place)


def _markers(cell: CellReport, gaps: Histogram, panel: _Panel) -> Iterator[str]:
    """Where half and 99 in 100 of the gaps end, medians over the pairs."""
    low, high = math.log(gaps.edges[0]), math.log(gaps.edges[-1])
    top = panel.bottom - HEIGHT
    for name, shown in (("gap_p50", "p50"), ("gap_p99", "p99")):
        found = cell.find(name)
        if found is None or found.medians[panel.leg] <= 0:
            continue
        value = found.medians[panel.leg]
        share = min(1.0, max(0.0, (math.log(value / 1e3) - low) / (high - low)))
        x = LEFT + (RIGHT - LEFT) * share
        yield element("line", x1=x, x2=x, y1=top, y2=panel.bottom, class_="mark")
        anchor, nudge = ("end", -4) if share > 0.85 else ("start", 4)
        yield label(
            f"{shown} {value:.1f} ms", x + nudge, top + 8, text_anchor=anchor, class_="halo"
        )


def _scale(gaps: Histogram, y: float) -> Iterator[str]:
    steps = len(gaps.edges) - 1
    for i in range(0, steps + 1, steps // 8):
        x = LEFT + (RIGHT - LEFT) * i / steps
        anchor = "start" if i == 0 else "end" if i == steps else "middle"
        yield label(f"{1e3 * gaps.edges[i]:.3g} ms", x, y, text_anchor=anchor, class_="quiet")


def _gap_words(report: Report, cell: CellReport) -> str:
    words = []
    for name in ("gap_p50", "gap_p90", "gap_p99", "gap_max"):
        found = cell.find(name)
        if found is not None:
            both = ", ".join(f"{leg} {found.medians[leg]:.1f} ms" for leg in report.pair)
            words.append(f"{found.title}: {both}")
    return "; ".join(words)
