"""Can `flare compare` tell a real effect from none? Two checks with a known answer.

python -m benchmarks.compare_power CORE [--effect 5] [--repeats 20] [--requests 256]
    [--concurrency 4] [--leg mixed] [--check a-a] [--output DIR]

A/A: the same leg against itself must show no difference. Effect: the second leg's server is
stopped (SIGSTOP) for a share of every 40 ms, so that it really is slower by about that share; the
difference must be shown (the time that the server was stopped is measured, not assumed, and printed
beside it). Both at 95 %, corrected as in `flare compare`. Exit code 0 when both checks hold.

What can be detected depends on the machine: FLARE_ variables reach the servers, and where wide
instructions change the clock, FLARE_CPU_ISA=avx2 is steadier. The last line of each check names
the smallest effect that these pairs detect nineteen times in twenty.
"""

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from app.bench.compare.analysis import corrected, decisive
from app.bench.compare.cells import load_cells
from app.bench.compare.legs import FAMILIES, Leg
from app.bench.compare.page import page
from app.bench.compare.power import open_meter
from app.bench.compare.progress import show_progress
from app.bench.compare.report import Ask, Report, build, to_json, write_file
from app.bench.compare.run import Comparison, Results, compare_legs
from app.bench.compare.table import interval, report_text, signed
from app.bench.plan import Plan
from app.bench.serving import now
from app.bench.stats import student_quantile
from app.bench.workloads import Workload
from app.commands.compare import variables

PERIOD_S = 0.04
CONFIDENCE = 0.95
SHORT = Workload(
    "short",
    "prompts of 16 to 64 tokens, answers of 6 to 12",
    76,
    lambda draw: (draw.randint(16, 64), draw.randint(6, 12)),
)


@dataclass(slots=True)
class Brake:
    """Stops a process for a share of its time, and knows how long it was stopped.

    stopped, total: seconds, of every time that it was on.
    """

    share: float
    stopped: list[float] = field(default_factory=list)
    total: list[float] = field(default_factory=list)

    @contextmanager
    def on(self, pid: int) -> Iterator[None]:
        """Brake the process while the context lasts; it runs when it ends."""
        over = threading.Event()
        thread = threading.Thread(target=self._work, args=(pid, over))
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    @property
    def caused(self) -> float:
        """The share of throughput that was taken: of time, since a stopped server makes none."""
        return sum(self.stopped) / sum(self.total)

    def _work(self, pid: int, over: threading.Event) -> None:
        began, stopped = time.perf_counter(), 0.0
        runs = PERIOD_S * (1 - self.share) / 2  # half, so that a short block gets its share, too
        while not over.wait(runs):
            at = time.perf_counter()
            os.kill(pid, signal.SIGSTOP)
            try:
                time.sleep(PERIOD_S * self.share)
            finally:
                os.kill(pid, signal.SIGCONT)
            took = time.perf_counter() - at
            stopped += took
            runs = took * (1 / self.share - 1)  # a stop that took long is made up for
        self.stopped.append(stopped)
        self.total.append(time.perf_counter() - began)


def options() -> argparse.Namespace:
    """The command line."""
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    ap.add_argument("core", type=Path)
    ap.add_argument("--effect", type=float, default=5.0, help="per cent of the time")
    ap.add_argument("--repeats", type=int, default=20)
    ap.add_argument("--requests", type=int, default=256, help="of one repeat")
    ap.add_argument("--concurrency", type=int, default=4)
    ap.add_argument("--leg", choices=[leg.name for leg in FAMILIES], default="mixed")
    ap.add_argument("--check", choices=("a-a", "effect"), help="one of the two alone")
    ap.add_argument("--output", type=Path, default=Path("compare-power"))
    return ap.parse_args()


def compared(a: argparse.Namespace, legs: tuple[Leg, Leg], folder: Path) -> Report:
    """Compare two legs as the command does, and write both files of the report."""
    plan = Plan(SHORT, (a.concurrency,), a.repeats, requests=a.requests)
    cells = load_cells(plan)
    comparison = Comparison(a.core, (cells,), a.repeats, open_meter(), legs)
    decide = decisive(objective=False)
    ask = Ask(
        comparison=comparison,
        decide=decide,
        confidence=CONFIDENCE,
        level=corrected(CONFIDENCE, len(decide)),
        asked=False,
        map_metric=None,
        forecasts={},
        variables=variables(),
    )
    date, began, results = now(), time.monotonic(), Results()
    with show_progress(comparison.units) as advance:
        compare_legs(comparison, results, advance)
    report = build(ask, results, date, time.monotonic() - began, None)
    folder.mkdir(parents=True, exist_ok=True)
    write_file(folder, "report.json", to_json(report))
    write_file(folder, "report.html", page(report))
    return report


def shown(report: Report) -> list[str]:
    """The deciding metrics that show a difference, with their intervals."""
    return [
        f"{d.title} {signed(d.estimate)} ({interval(d)})"
        for d in report.cells[0].differences
        if d.decides and d.better is not None
    ]


def detectable(report: Report) -> str:
    """The effect on throughput that is shown with a chance of 95 %, given how the pairs vary.

    The interval's half width, t standard errors, and 1.645 standard errors more.
    """
    found = report.cells[0].find("tok_s")
    assert found is not None and found.low is not None and found.high is not None
    pairs = report.setting.repeats
    t = student_quantile((1 + found.level) / 2, pairs - 1)
    half = (found.high - found.low) / 2
    return f"detectable with {pairs} pairs: {100 * half * (1 + 1.645 / t):.1f} % of throughput"


def no_effect(a: argparse.Namespace, leg: Leg) -> bool:
    """A leg against itself."""
    again = Leg(f"{leg.name} again", leg.arguments)
    report = compared(a, (leg, again), a.output / "a-a")
    sys.stdout.write(report_text(report))
    found = shown(report)
    print(f"\nA/A: {'; '.join(found) or 'no difference shown'}: {'FAILED' if found else 'ok'}")
    print(detectable(report))
    return not found


def effect(a: argparse.Namespace, leg: Leg) -> bool:
    """A leg against itself behind a brake."""
    brake = Brake(a.effect / 100)
    slow = Leg(f"{leg.name}, braked", leg.arguments, beside=brake.on)
    report = compared(a, (leg, slow), a.output / "effect")
    sys.stdout.write(report_text(report))
    found = report.cells[0].find("tok_s")
    assert found is not None and found.low is not None and found.high is not None
    held = found.low <= -brake.caused <= found.high
    seen = found.better == leg.name
    print(
        f"\neffect: the server was stopped {100 * brake.caused:.2f} % of the time; throughput "
        f"{signed(found.estimate)} ({interval(found)}): {'ok' if seen else 'FAILED: not detected'}"
        f"{'' if held else '; outside of the interval'}"
    )
    print(detectable(report))
    return seen


def main() -> int:
    """Run both checks."""
    a = options()
    leg = next(leg for leg in FAMILIES if leg.name == a.leg)
    checks = {"a-a": no_effect, "effect": effect}
    passed = [check(a, leg) for name, check in checks.items() if a.check in (None, name)]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
