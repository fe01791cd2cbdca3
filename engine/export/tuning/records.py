"""Kernel choice without measuring: profile ``fast``, and what every profile starts from."""

from collections.abc import Iterable, Mapping

from engine.core.schema import Candidate, TuningRecord
from engine.export.tuning.shapes import row_symbol, shape_key
from engine.ir.program import Attr, Launch, Program
from engine.kernels.cpu import linear_kernel

ROW_CLASSES = (1, 16, 128)
"""Upper bounds of the row classes; more rows are class "many"."""


def choose_cpu_kernel(op: str, attrs: Mapping[str, Attr]) -> str:
    """Return the CPU kernel of a launch: one per layout and pair of numerics classes, since the
    kernel itself picks its path by rows and instruction set without changing a bit."""
    if op == "linear":
        classes = str(attrs["prompt_class"]), str(attrs["generated_class"])
        return linear_kernel(str(attrs["layout"]), *classes)
    return f"cpu.embed.{attrs['layout']}" if op == "embed" else f"cpu.{op}"


class TuningTable:
    """Collects the records that captured graphs ask for; the first to ask introduces a record."""

    def __init__(self) -> None:
        self._records: dict[str, TuningRecord] = {}

    def add(self, graph_id: str, program: Program) -> tuple[str, ...]:
        """Record what a graph's program needs. Returns its keys, in the order of first use."""
        keys = dict.fromkeys(self._add(graph_id, launch, rows) for launch, rows in _rows(program))
        return tuple(keys)

    @property
    def records(self) -> tuple[TuningRecord, ...]:
        return tuple(self._records.values())

    def _add(self, graph_id: str, launch: Launch, rows: int) -> str:
        """A weight has one packed layout, which the one-row shape decides: records for more rows
        depend on that record."""
        shape = shape_key(launch)
        one, key = f"{shape}/rows-1", f"{shape}/rows-{row_class(rows)}"
        for wanted in dict.fromkeys((one, key)):
            if wanted not in self._records:
                depends = (one,) if wanted != one else ()
                candidates = (Candidate(launch.kernel),)
                self._records[wanted] = TuningRecord(
                    wanted, candidates, launch.kernel, "fast", depends, graph_id, "heuristic"
                )
        return key


def row_class(rows: int) -> str:
    """Return the name of the class of shapes that share one choice."""
    return next((str(bound) for bound in ROW_CLASSES if rows <= bound), "many")


def _rows(program: Program) -> Iterable[tuple[Launch, int]]:
    """Yield each launch and its rows at the program's capacity."""
    for launch in program.launches:
        yield launch, program.domain.bind(row_symbol(program, launch))
