"""What all pictures of a report share: marks and words that say what colours say."""

from app.bench.compare.analysis import Difference
from app.bench.compare.report import Report
from app.bench.compare.svg import element
from app.bench.compare.table import interval, signed

WIDTH = 860.0


def side(report: Report, leg: str) -> str:
    """The class of a leg's marks: "base" or "other"."""
    return ("base", "other")[report.pair.index(leg)]


def spoken(found: Difference) -> str:
    """A difference in words."""
    better = f"{found.better} is better" if found.better else "no difference shown"
    return f"{found.title}: {signed(found.estimate)} ({interval(found)}), {better}"


def patterns() -> str:
    """Hatchings in each leg's colour, once for a page; pictures name them in their styles."""
    lines = "".join(
        element(
            "pattern",
            element("rect", width=6, height=6, class_="paper")
            + element("path", d="M0 6L6 0M-1 1L1 -1M5 7L7 5", class_=f"hatch {name}"),
            id=f"hatch-{name}",
            width=6,
            height=6,
            patternUnits="userSpaceOnUse",
        )
        for name in ("base", "other", "open")
    )
    return element(
        "svg", element("defs", lines), width=0, height=0, aria_hidden="true", class_="defs"
    )
