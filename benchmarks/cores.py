"""Steps of several cores of one model, replayed in turn: what one export gains on another.

python -m benchmarks.cores CORE CORE ... [--threads 2] [--rounds 20] [--devices 4]

Every round replays each shape with every core, in an order that turns from round to round, so that
a machine whose speed drifts slows all of them alike. Where a device's memory happens to lie makes
steps faster or slower by some per cent, so there are several devices, one after the other. Printed
are medians, and for every core after the first the median of its time against the first one's in
the same round, in per cent (less is faster), with a 95 % interval: a bootstrap over rounds, as if a
device's own speed were one more round's noise, so too narrow where devices differ much.
"""

import argparse
import math
import os
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from msgspec import Struct

from app.bench.machine import machine
from app.bench.stats import median
from benchmarks.kernel_table import Bench, replayed
from benchmarks.serving.report import rows_of
from engine.core.reader import open_core
from engine.core.schema import Kind
from engine.device.base import BatchShape, Executable

DECODES = (1, 4, 8, 16, 32)
CHUNKS = ((32, 0), (128, 512), (512, 0), (512, 1536))
"""Rows of a prompt, and tokens before them."""
RESAMPLES = 2000
Seconds = dict[str, list[list[float]]]
"""By shape, for each core, of every round."""


class Step(Struct, frozen=True):
    """One shape on one core."""

    executable: Executable
    lay: Callable[[], BatchShape]


def steps(bench: Bench) -> dict[str, Step]:
    """Every shape by name."""
    made = {}
    for rows in DECODES:
        graph = bench.graph(Kind.DECODE, rows)
        executable = bench.instantiate(graph, bench.program(graph).launches)
        made[f"{rows} generated"] = Step(executable, partial(bench.decode, rows))
    for rows, start in CHUNKS:
        graph = bench.graph(Kind.PREFILL, rows)
        executable = bench.instantiate(graph, bench.program(graph).launches)
        made[f"{rows} of a prompt from {start}"] = Step(
            executable, partial(bench.chunk, rows, start)
        )
    return made


def measure(cores: list[dict[str, Step]], rounds: int, seconds: Seconds) -> None:
    """Add some rounds."""
    for number in range(-1, rounds):
        order = range(len(cores)) if number % 2 else range(len(cores))[::-1]
        for name in cores[0]:
            for index in order:
                step = cores[index][name]
                took = replayed(step.executable, step.lay)
                if number >= 0:  # the first round warms caches and pages
                    seconds[name][index].append(took)


def against(base: list[float], other: list[float]) -> str:
    """The median of the rounds' differences, with its interval."""
    logs = np.log(np.array(other) / np.array(base))
    draw = np.random.default_rng(0)
    medians = np.median(draw.choice(logs, (RESAMPLES, len(logs))), axis=1)
    low, high = np.quantile(medians, (0.025, 0.975))
    shown = [100 * math.expm1(value) for value in (float(np.median(logs)), low, high)]
    return "{:+.1f} % ({:+.1f} to {:+.1f})".format(*shown)


def table(names: list[str], seconds: Seconds) -> str:
    """Markdown: a row for each shape, and one over all shapes."""
    rows = [["rows", *(f"{name}, ms" for name in names), *(f"{n} / {names[0]}" for n in names[1:])]]
    for shape, taken in seconds.items():
        times = [f"{1e3 * median(own):.2f}" for own in taken]
        rows.append([shape, *times, *(against(taken[0], own) for own in taken[1:])])
    joined = [
        [value for taken in seconds.values() for value in taken[i]] for i in range(len(names))
    ]
    blank = [""] * len(names)
    rows.append(["all", *blank, *(against(joined[0], own) for own in joined[1:])])
    return rows_of(rows)


def main() -> None:
    """Measure and print."""
    ap = argparse.ArgumentParser(prog="python -m benchmarks.cores", description=__doc__)
    ap.add_argument("cores", type=Path, nargs="+", metavar="CORE")
    ap.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    ap.add_argument("--rounds", type=int, default=20, help="with each device")
    ap.add_argument("--devices", type=int, default=4, help="for each core, one after the other")
    a = ap.parse_args()
    seconds: Seconds = defaultdict(lambda: [[] for _ in a.cores])
    for _ in range(a.devices):
        made = [steps(Bench(open_core(core), a.threads, a.rounds)) for core in a.cores]
        measure(made, a.rounds, seconds)
    print("\n".join(f"- {name}: {value}" for name, value in machine().items()))
    print(f"- threads: {a.threads}\n- rounds: {a.devices} x {a.rounds}\n")
    print(table([core.stem for core in a.cores], seconds))


if __name__ == "__main__":
    main()
