"""Tuning a capture: choices per shape and row class, proof in whole steps, records, buckets."""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from engine.core.schema import Graph, TuningRecord
from engine.export.catalog import Capture
from engine.export.tuning.buckets import keep_buckets
from engine.export.tuning.choices import Choice, choose, questions
from engine.export.tuning.classes import RowClass, row_classes
from engine.export.tuning.intervals import Interval, interval
from engine.export.tuning.layouts import LAYOUT_KEY, Layouts, apply, choose_layouts, layout_key
from engine.export.tuning.questions import Ask, Question
from engine.export.tuning.second import first_shape
from engine.export.tuning.shapes import shape_key
from engine.export.tuning.task import Task, Told
from engine.ir.program import Launch, Program, Space
from engine.kernels.cpu import cpu_kernels

HEURISTIC, TUNED = "heuristic", "tuned"
"""Options of a question about a whole step."""
Choices = Mapping[str, Mapping[str, Choice]]
"""Row class -> shape -> choice."""


class Proven(Struct, frozen=True):
    """Choices that whole steps have borne out. times: what was measured of a graph's step."""

    choices: Choices
    times: Mapping[str, str]


def tune(task: Task, ask: Ask, told: Told) -> Capture:
    """Return the capture with measured layouts and kernels, their records, and the capacities
    worth keeping.

    Everything follows from the answers to its questions, which come in one order: the same
    answers give the same capture.
    """
    classes = row_classes(task.capture.graphs, task.profile)
    layouts = choose_layouts(task, classes, ask, told)
    task = replace(task, capture=apply(task.capture, layouts, classes))
    choices = _choose(task, classes, ask, told)
    proven = _prove(task, classes, choices, ask, told)
    programs = _programs(task.capture, classes, proven.choices)
    return _assemble(task.capture, classes, proven, programs, layouts)


def _choose(
    task: Task,
    classes: Sequence[RowClass],
    ask: Ask,
    told: Told,
) -> Choices:
    asked = [
        (row_class, shape, question)
        for row_class in classes
        for shape, question in questions(
            task.capture.programs[row_class.sample.program],
            row_class,
            task.profile,
            task.max_model_len,
        )
    ]
    told.step("Timing kernels", sum(len(question.options) > 1 for _, _, question in asked))
    choices: dict[str, dict[str, Choice]] = {}
    for row_class, shape, question in asked:
        choice = choose(shape, row_class, question, task.profile, ask)
        choices.setdefault(row_class.name, {})[shape] = choice
        if len(question.options) > 1:
            told.advance()
    return choices


def _prove(
    task: Task,
    classes: Sequence[RowClass],
    choices: Choices,
    ask: Ask,
    told: Told,
) -> Proven:
    """Time the whole step of each class's sample, as tuned beside the heuristics.

    A class whose step is slower as tuned goes back to the heuristics.
    """
    told.step("Timing whole steps", len(classes))
    proven, times = dict(choices), {}
    for row_class in classes:
        program = task.capture.programs[row_class.sample.program]
        options = {HEURISTIC: program}
        tuned = _tuned(program, choices[row_class.name])
        if tuned.launches != program.launches:
            options[TUNED] = tuned
        question = Question(
            f"step/{row_class.sample.id}",
            tuple(options),
            tuple(options.values()),
            row_class.batch(task.max_model_len),
        )
        found = {name: interval(times) for name, times in ask(question).samples.items()}
        worse = TUNED in found and found[HEURISTIC].high < found[TUNED].low
        if worse:
            reason = f"the whole step of {row_class.sample.id} was slower: the heuristic stays"
            proven[row_class.name] = {
                shape: choice.kept_back(reason) if choice.changed else choice
                for shape, choice in choices[row_class.name].items()
            }
        times[row_class.sample.id] = _step_text(question, found, worse)
        told.advance()
    return Proven(proven, times)


def _step_text(question: Question, found: Mapping[str, Interval], worse: bool) -> str:
    heuristic = found[HEURISTIC]
    text = f"a step of {question.batch.rows} rows takes {_milliseconds(heuristic)}"
    if TUNED not in found:
        return text
    tuned = _milliseconds(found[TUNED])
    return f"{text}, and {tuned} tuned" + (": not kept" if worse else "")


def _milliseconds(found: Interval) -> str:
    low, median, high = (1e3 * value for value in (found.low, found.median, found.high))
    return f"{median:.2f} ms ({low:.2f} to {high:.2f})"


def _tuned(program: Program, choices: Mapping[str, Choice]) -> Program:
    launches = tuple(
        launch
        if launch.kernel == choices[shape_key(launch)].kernel
        else replace(launch, kernel=choices[shape_key(launch)].kernel)
        for launch in program.launches
    )
    return replace(program, launches=launches)


def _programs(
    capture: Capture, classes: Sequence[RowClass], choices: Choices
) -> dict[str, Program]:
    """Every graph's program with its class's kernels; equal launches are one object again."""
    shared: dict[tuple[str, ...], tuple[Launch, ...]] = {}
    programs = dict(capture.programs)
    names = {graph.id: graph.program for graph in capture.graphs}
    for row_class in classes:
        for graph_id in row_class.graphs:
            program = _tuned(capture.programs[names[graph_id]], choices[row_class.name])
            kernels = tuple(launch.kernel for launch in program.launches)
            launches = shared.setdefault(kernels, program.launches)
            programs[program.name] = replace(program, launches=launches)
    return programs


def _assemble(
    capture: Capture,
    classes: Sequence[RowClass],
    proven: Proven,
    programs: Mapping[str, Program],
    layouts: Layouts,
) -> Capture:
    """Put graphs, kernels, records and programs together. A graph rests on the records of its own
    class, and of the capacities that it took over: that they chose the same is why it could."""
    buckets = keep_buckets(capture.graphs, programs, proven.times)
    class_of = {graph_id: row_class.name for row_class in classes for graph_id in row_class.graphs}
    joint = {record.key: record for record in _joined(layouts, proven.choices)}
    records: dict[str, TuningRecord] = {}
    graphs: list[Graph] = []
    for graph in capture.graphs:
        if graph.id not in buckets:
            continue
        bucket = buckets[graph.id]
        picked = [proven.choices[class_of[name]] for name in (*bucket.took_over, graph.id)]
        rests_on = [choice.record for shapes in picked for choice in shapes.values()]
        rests_on += [joint[key] for key in _layout_keys(programs[graph.program], joint)]
        needed = [joint[key] for record in rests_on for key in record.depends_on]
        for record in (*rests_on, *needed):
            records.setdefault(record.key, replace(record, introduced_by=graph.id))
        graphs.append(_graph(graph, programs[graph.program], rests_on, bucket.reason))
    named = [kernel for graph in graphs for kernel in graph.kernels]
    tried = [c.kernel for record in records.values() for c in record.candidates]
    kept = {graph.program: programs[graph.program] for graph in graphs}
    return Capture(tuple(graphs), cpu_kernels([*named, *tried]), tuple(records.values()), kept)


def _graph(graph: Graph, program: Program, rests_on: Sequence[TuningRecord], reason: str) -> Graph:
    weights = (b.name for b in program.buffers.values() if b.space is Space.WEIGHT)
    return replace(
        graph,
        kernels=tuple(dict.fromkeys(launch.kernel for launch in program.launches)),
        tuning=tuple(dict.fromkeys(record.key for record in rests_on)),
        layouts=tuple(weights),
        reason=reason,
    )


def _joined(layouts: Layouts, choices: Choices) -> Iterable[TuningRecord]:
    """The records of layouts, and those of one-row launches, which the joint ones rest on too:
    one row reads the first layout, whatever prompts read."""
    one_row = choices.get("generated-1", {})
    for record in layouts.records:
        shape = record.key.removeprefix(LAYOUT_KEY)
        if shape not in one_row:
            yield record
            continue
        first = one_row[shape].record
        yield first
        yield replace(record, depends_on=(first.key, *record.depends_on))


def _layout_keys(program: Program, joint: Mapping[str, TuningRecord]) -> Iterable[str]:
    """Keys of the joint records of the weights that a program reads."""
    keys = (layout_key(first_shape(launch)) for launch in program.launches)
    return dict.fromkeys(key for key in keys if key in joint)
