"""Small line charts as SVG, written by hand: no plotting library is needed."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Point = tuple[float, float]

WIDTH, HEIGHT = 420, 300
LEFT, RIGHT, TOP, BOTTOM = 62, 16, 34, 46
COLOURS = ("#0b6e99", "#d9480f", "#2b8a3e", "#862e9c")


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart: named series over a logarithmic (base 2) x axis and a linear y axis from 0."""

    title: str
    x_title: str
    y_title: str
    series: Mapping[str, Sequence[Point]]


def svg(charts: Sequence[Chart]) -> str:
    """The charts side by side, as one SVG document. Raises ValueError for one without points."""
    width = WIDTH * len(charts)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{HEIGHT}" '
        f'viewBox="0 0 {width} {HEIGHT}" font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{HEIGHT}" fill="white"/>',
    ]
    for i, chart in enumerate(charts):
        parts += [f'<g transform="translate({i * WIDTH},0)">', *_chart(chart), "</g>"]
    return "\n".join([*parts, "</svg>"]) + "\n"


def round_up(value: float) -> float:
    """The next of 1, 2, 2.5, 5 times a power of ten: the top of an axis."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= value)


def _chart(chart: Chart) -> list[str]:
    points = [point for series in chart.series.values() for point in series]
    if not points:
        raise ValueError(f"no points in {chart.title!r}")
    ticks = sorted({x for x, _ in points})
    top = round_up(max(y for _, y in points))
    low, high = math.log2(ticks[0]), math.log2(ticks[-1])

    def place(point: Point) -> Point:
        along = (math.log2(point[0]) - low) / (high - low or 1)
        x = LEFT + along * (WIDTH - LEFT - RIGHT)
        return x, HEIGHT - BOTTOM - point[1] / top * (HEIGHT - TOP - BOTTOM)

    lines = _frame(chart)
    for i in range(6):
        y = place((ticks[0], top * i / 5))[1]
        lines.append(_line(LEFT, y, WIDTH - RIGHT, y, "#ddd"))
        lines.append(_text(LEFT - 6, y + 4, f"{top * i / 5:,g}", "end"))
    lines += [_text(place((x, 0))[0], HEIGHT - BOTTOM + 15, f"{x:g}", "middle") for x in ticks]
    for i, (name, series) in enumerate(chart.series.items()):
        lines += _series([place(p) for p in series], name, COLOURS[i % len(COLOURS)], i)
    return lines


def _frame(chart: Chart) -> list[str]:
    middle = (TOP + HEIGHT - BOTTOM) / 2
    turned = f'transform="rotate(-90 14 {middle})"'
    return [
        f'<text x="{LEFT}" y="18" font-size="13" font-weight="bold">{chart.title}</text>',
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, chart.x_title, "middle"),
        f'<text x="14" y="{middle}" text-anchor="middle" {turned}>{chart.y_title}</text>',
    ]


def _series(points: Sequence[Point], name: str, colour: str, number: int) -> list[str]:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
    y = TOP + 12 + 14 * number
    legend = f'<text x="{LEFT + 8}" y="{y}" fill="{colour}">{name}</text>'
    line = f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
    return [line, *dots, legend]


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'
