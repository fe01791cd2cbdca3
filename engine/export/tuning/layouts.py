"""Which weights get a second layout: one choice for all graphs that read a weight.

Each shape is measured with one and with two layouts, in every class of prompt and mixed rows. What
it saves is an average over these classes; a class that loses forbids it. Shapes are then taken in
the order of what they save per byte, while the budget lasts.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean

from msgspec import Struct
from msgspec.structs import replace

from engine.core.schema import Candidate, TuningRecord
from engine.export.catalog import Capture
from engine.export.tuning.choices import Choice, choose
from engine.export.tuning.classes import RowClass
from engine.export.tuning.intervals import interval
from engine.export.tuning.questions import Ask, Question
from engine.export.tuning.second import added_bytes, second_kernel, second_of, with_second
from engine.export.tuning.shapes import by_shape, only
from engine.export.tuning.task import Task, Told
from engine.ir.program import Launch

MIB = 1 << 20
LAYOUT_KEY = "layout/"
"""Before a shape: the key of the record of its joint choice."""
LEAST_SAVING = 10e-6
"""The price: seconds that each added MiB must save per step."""


class Case(Struct, frozen=True):
    """A shape that could have a second layout. added: bytes. choices: what was measured, by row
    class; empty when it was not, since ``added`` is above the budget."""

    shape: str
    kernels: tuple[str, str]
    added: int
    choices: tuple[Choice, ...] = ()

    @property
    def savings(self) -> tuple[float, ...]:
        """Seconds that a step saves in each class: 0 where the intervals do not lie apart."""
        return tuple(_saving(choice.record) for choice in self.choices)


class Layouts(Struct, frozen=True):
    """The shapes that get a second layout, and the records of why and why not."""

    shapes: frozenset[str] = frozenset()
    records: tuple[TuningRecord, ...] = ()


def choose_layouts(task: Task, classes: Sequence[RowClass], ask: Ask, told: Told) -> Layouts:
    """Measure and choose. A budget of 0 leaves every weight with one layout, unmeasured."""
    prompts = [row_class for row_class in classes if row_class.role != "generated"]
    shapes = _shapes(task.capture, prompts)
    affordable = {
        s for s, launches in shapes.items() if added_bytes(launches) <= task.layout_budget
    }
    if affordable:
        told.step("Timing layouts", len(affordable) * len(prompts))
    cases = []
    for shape, launches in shapes.items():
        case = Case(shape, (launches[0].kernel, second_kernel(launches[0])), added_bytes(launches))
        measured = []
        for row_class in prompts if shape in affordable else ():
            measured.append(_measure(task, shape, row_class, ask))
            told.advance()
        cases.append(replace(case, choices=tuple(measured)))
    return decide_layouts(cases, task)


def decide_layouts(cases: Sequence[Case], task: Task) -> Layouts:
    """Choose jointly, from what was measured. The same cases give the same choice."""
    left, chosen, why = task.layout_budget, set[str](), dict[str, str]()
    for case in sorted(cases, key=_worth):
        refused = _refused(case, left, task.layout_budget)
        if refused is None:
            left -= case.added
            chosen.add(case.shape)
            refused = f"saves {1e3 * fmean(case.savings):.2f} ms a step for {_mib(case)}"
        why[case.shape] = refused
    records: list[TuningRecord] = []
    for case in cases:
        records.extend(choice.record for choice in case.choices)
        records.append(_record(case, case.shape in chosen, why[case.shape], task))
    return Layouts(frozenset(chosen), tuple(records))


def apply(capture: Capture, layouts: Layouts, classes: Sequence[RowClass]) -> Capture:
    """Return the capture whose prompt and mixed graphs read the second layouts."""
    readers = {name for c in classes if c.role != "generated" for name in c.graphs}
    programs = dict(capture.programs)
    for graph in capture.graphs:
        if graph.id in readers and layouts.shapes:
            programs[graph.program] = with_second(programs[graph.program], layouts.shapes)
    return replace(capture, programs=programs)


def _shapes(capture: Capture, classes: Sequence[RowClass]) -> Mapping[str, tuple[Launch, ...]]:
    """Linears that could read a second layout, by shape."""
    if not classes:
        return {}
    program = capture.programs[classes[0].sample.program]
    return {
        shape: launches
        for shape, launches in by_shape(program).items()
        if second_of(launches[0]) is not None
    }


def _measure(task: Task, shape: str, row_class: RowClass, ask: Ask) -> Choice:
    program = task.capture.programs[row_class.sample.program]
    one = only(program, by_shape(program)[shape])
    two = with_second(one, {shape})
    question = Question(
        f"{layout_key(shape)}/{row_class.name}",
        (one.launches[0].kernel, two.launches[0].kernel),
        (one, two),
        row_class.batch(task.max_model_len),
        check=task.profile == "audit",
    )
    return choose(shape, row_class, question, task.profile, ask)


def _saving(record: TuningRecord) -> float:
    one, two = (candidate.samples for candidate in record.candidates)
    if not one or not two:
        return 0.0
    before, after = interval(one), interval(two)
    apart = after.high < before.low or before.high < after.low
    return before.median - after.median if apart else 0.0


def _worth(case: Case) -> tuple[float, str]:
    """Sorts what saves most per byte first."""
    return (-fmean(case.savings) / case.added if case.savings else 0.0, case.shape)


def _refused(case: Case, left: int, budget: int) -> str | None:
    """Why a shape gets no second layout, or None when it does."""
    if not case.choices:
        return f"not measured: {_mib(case)} are above the layout budget of {budget / MIB:.1f} MiB"
    slower = [c.row_class for c, s in zip(case.choices, case.savings, strict=True) if s < 0]
    if slower:
        return f"two layouts are slower for {', '.join(slower)}"
    saved = fmean(case.savings)
    if saved < LEAST_SAVING * case.added / MIB:
        return f"{1e3 * saved:.2f} ms a step are too little for {_mib(case)}"
    if case.added > left:
        return f"{_mib(case)} are above what is left of the layout budget, {left / MIB:.1f} MiB"
    return None


def _record(case: Case, chosen: bool, why: str, task: Task) -> TuningRecord:
    """The joint choice. It rests on the measured rows, few and many."""
    one, two = case.kernels
    candidates = (Candidate(one), Candidate(two, refused=None if chosen else why))
    depends = tuple(choice.record.key for choice in case.choices)
    winner = two if chosen else one
    return TuningRecord(
        layout_key(case.shape), candidates, winner, task.profile, depends, None, why
    )


def layout_key(shape: str) -> str:
    """Key of the record of a shape's joint choice."""
    return f"{LAYOUT_KEY}{shape}"


def _mib(case: Case) -> str:
    return f"{case.added / MIB:.1f} MiB"
