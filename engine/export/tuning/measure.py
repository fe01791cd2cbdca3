"""Answers questions: from the journal, or by measuring on the bench."""

import time
from collections.abc import Callable, Mapping
from types import MappingProxyType

from engine.core.schema import Tuning
from engine.errors import DeviceError
from engine.export.tuning.check import CHECKED, check
from engine.export.tuning.journal import Journal
from engine.export.tuning.questions import Ask, Measurement, Question
from engine.export.tuning.rig import Rig
from engine.export.tuning.sampling import Effort, sample

EFFORT: Mapping[Tuning, Effort] = MappingProxyType(
    {"balanced": Effort(9, 36, 1.2, early=True), "audit": Effort(20, 60, 8.0, early=False)}
)
"""Rounds and seconds per question, by profile."""


def on_bench(rig: Rig, effort: Effort, clock: Callable[[], float] = time.perf_counter) -> Ask:
    """Return what measures questions on the native device.

    Raises DeviceError when the heuristic itself fails its check.
    """

    def ask(question: Question) -> Measurement:
        faults = check(rig, question) if question.check else {}
        heuristic = question.options[0]
        if heuristic in faults:
            raise DeviceError(
                f"{question.key}: kernel {heuristic} {faults[heuristic]}",
                "This is a fault of Flare or of the machine: please report it.",
            )
        rig.reset()
        rig.fill(question.batch)
        options = {
            option: rig.runner(program, question.batch)
            for option, program in zip(question.options, question.programs, strict=True)
            if option not in faults
        }
        times = sample(list(options.values()), effort, question.seed, clock)
        samples = dict(zip(options, times, strict=True))
        return Measurement(question.key, samples, CHECKED if question.check else None, faults)

    return ask


def with_journal(journal: Journal, ask: Ask) -> Ask:
    """Return what takes answers from the journal, and writes new ones into it."""

    def answer(question: Question) -> Measurement:
        found = journal.found.get(question.key)
        if found is not None and _answers(found, question):
            return found
        measured = ask(question)
        journal.add(measured)
        return measured

    return answer


def _answers(found: Measurement, question: Question) -> bool:
    """Whether a journal's answer is to the same options."""
    return set(question.options) == {*found.samples, *found.refused}
