"""Progress of a comparison on standard error: a bar with an estimate, plain lines elsewhere."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from app.bench.compare.run import Advance


@contextmanager
def show_progress(total: int, stream: TextIO | None = None) -> Iterator[Advance]:
    """Yield what to call after each of ``total`` units. ``stream``: standard error when None."""
    out = stream or sys.stderr
    if not out.isatty():
        yield _lines(total, out)
        return
    columns = (
        TextColumn("flare: comparing"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=Console(file=out)) as bars:
        task = bars.add_task("starting", total=total)
        yield lambda line: bars.update(task, advance=1, description=line)


def _lines(total: int, out: TextIO) -> Advance:
    start = time.monotonic()
    done = 0

    def advance(line: str) -> None:
        nonlocal done
        done += 1
        left = (time.monotonic() - start) / done * (total - done)
        print(f"flare: {line} ({done} of {total}, {left:.0f} s left)", file=out, flush=True)

    return advance
