"""The choice for one shape and row class: its question, its answer, and the record of both."""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from engine.core.schema import Candidate, Tuning, TuningRecord
from engine.export.tuning.candidates import candidates
from engine.export.tuning.classes import RowClass
from engine.export.tuning.intervals import FEWEST, decide, interval
from engine.export.tuning.questions import Ask, Measurement, Question
from engine.export.tuning.shapes import by_shape, row_symbol, with_kernel
from engine.ir.program import Program

AGAIN = "/again"
"""Behind the key of a question: its winner against the heuristic alone, measured anew."""


class Choice(Struct, frozen=True):
    """What was chosen for the launches of a shape in a row class, and the record of why."""

    shape: str
    row_class: str
    record: TuningRecord

    @property
    def kernel(self) -> str:
        return self.record.winner

    @property
    def changed(self) -> bool:
        """Whether it is not the heuristic."""
        return self.record.winner != self.record.candidates[0].kernel

    def kept_back(self, reason: str) -> "Choice":
        """The heuristic instead, for a reason that a whole step gave."""
        heuristic = self.record.candidates[0].kernel
        return replace(self, record=replace(self.record, winner=heuristic, reason=reason))


def questions(
    program: Program, row_class: RowClass, profile: Tuning, max_model_len: int
) -> Iterable[tuple[str, Question]]:
    """Yield shape and question for every shape of a class's sample program.

    The launches of all layers run one after the other, so that each finds its weights where a
    step would: in memory. Rows whose logits are wanted have no say: how many there are beside
    prompts is the requests' affair, so the heuristic stays.
    """
    batch = row_class.batch(max_model_len)
    for shape, launches in by_shape(program).items():
        open_ended = row_symbol(program, launches[0]) == "logits" and row_class.role != "generated"
        tried = "fast" if open_ended else profile
        options = candidates(launches[0], row_class.role, batch.rows, tried)
        yield (
            shape,
            Question(
                f"{shape}/{row_class.name}",
                options,
                tuple(with_kernel(program, launches, kernel) for kernel in options),
                batch,
                check=profile == "audit",
            ),
        )


def choose(
    shape: str, row_class: RowClass, question: Question, profile: Tuning, ask: Ask
) -> Choice:
    """Answer a question: measure, and where a candidate wins, let it win once more."""
    if len(question.options) == 1:
        record = TuningRecord(
            question.key, (Candidate(question.options[0]),), question.options[0], profile,
            reason="one candidate: not timed",
        )  # fmt: skip
        return Choice(shape, row_class.name, record)
    first = ask(question)
    options = [option for option in question.options if option not in first.refused]
    decision = decide([first.samples[option] for option in options])
    samples, winner, reason = dict(first.samples), options[decision.winner], decision.reason
    if decision.winner != 0:
        second = ask(_again(question, options[0], winner))
        decision = decide([second.samples[option] for option in (options[0], winner)])
        for option in (options[0], winner):
            samples[option] = [*samples[option], *second.samples[option]]
        reason = decision.reason
        if decision.winner == 0:
            reason = f"{winner} won once, and not again"
            winner = options[0]
    tried = tuple(_candidate(option, samples, first) for option in question.options)
    return Choice(
        shape, row_class.name, TuningRecord(question.key, tried, winner, profile, reason=reason)
    )


def _again(question: Question, *options: str) -> Question:
    programs = dict(zip(question.options, question.programs, strict=True))
    return Question(
        f"{question.key}{AGAIN}",
        options,
        tuple(programs[option] for option in options),
        question.batch,
    )


def _candidate(
    option: str, samples: Mapping[str, Sequence[float]], found: Measurement
) -> Candidate:
    times = tuple(float(f"{seconds:.4g}") for seconds in samples.get(option, ()))
    refused = found.refused.get(option)
    checked = found.checked if refused is None else None
    if len(times) < FEWEST:
        return Candidate(option, times, None, None, checked, refused)
    around = interval(times)
    return Candidate(option, times, around.low, around.high, checked, refused)
