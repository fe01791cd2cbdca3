"""Progress of an export on standard error: a bar in a terminal, plain lines elsewhere."""

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Protocol, Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_log = logging.getLogger(__name__)


class ExportProgress(Protocol):
    """What the pipeline tells of its work. Steps follow each other; each advances to its total."""

    def step(self, title: str, total: int) -> None:
        """Begin a step of ``total`` units; the one before is complete."""
        ...

    def advance(self) -> None:
        """One unit of the step is done."""
        ...

    def note(self, text: str) -> None:
        """Something that a person should know of this export."""
        ...


class Silent:
    """Shows nothing; notes go to the log."""

    def step(self, title: str, total: int) -> None:
        """Do nothing."""

    def advance(self) -> None:
        """Do nothing."""

    def note(self, text: str) -> None:
        _log.info("%s", text)


class Lines:
    """One plain line when a step begins, and one for each note."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._start = time.monotonic()

    def step(self, title: str, total: int) -> None:
        self._write(f"[{time.monotonic() - self._start:6.1f} s] {title}")

    def advance(self) -> None:
        """Plain lines show no units."""

    def note(self, text: str) -> None:
        self._write(f"note: {text}")

    def _write(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


class Bar:
    """A rich progress bar with one row per step."""

    def __init__(self, stream: TextIO) -> None:
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=Console(file=stream),
        )
        self._task = self._bars.add_task("", visible=False)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bars.stop()

    def step(self, title: str, total: int) -> None:
        self._task = self._bars.add_task(title, total=total)

    def advance(self) -> None:
        self._bars.advance(self._task)

    def note(self, text: str) -> None:
        self._bars.console.print(f"note: {text}", markup=False, highlight=False)


@contextmanager
def show_progress(stream: TextIO | None = None) -> Iterator[ExportProgress]:
    """Show progress on ``stream`` (None: standard error): a bar in a terminal, else plain lines."""
    stream = stream or sys.stderr
    if stream.isatty():
        with Bar(stream) as bar:
            yield bar
    else:
        yield Lines(stream)
