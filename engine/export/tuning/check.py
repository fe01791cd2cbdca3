"""Checks of tuned kernels: same bits as the heuristic, rows that stand alone, the reference op."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from engine.export.tuning.questions import Batch, Question
from engine.export.tuning.rig import Rig, rows_of
from engine.export.tuning.shapes import only, row_symbol
from engine.ir.program import Program

CHECKED = "reference+rows"
"""What ``Candidate.checked`` says of a kernel that passed."""
TOLERANCE = 0.02
"""Largest difference from the float32 reference, as a share of its norm: int8 activations, the
coarsest class, keep within 0.01."""
Bits = NDArray[np.uint32]


def check(rig: Rig, question: Question) -> dict[str, str]:
    """Run each option's first launch alone. Returns what is wrong, by option; empty: all is well.

    The heuristic is compared with the torch reference op; every option with the heuristic in bits,
    on the whole batch and on its first rows alone.
    """
    programs = [only(program, program.launches[:1]) for program in question.programs]
    batch = question.batch
    base = _outputs(rig, programs[0], batch)
    faults = {}
    wrong = _against_reference(rig, programs[0], batch, base)
    if wrong is not None:
        faults[question.options[0]] = wrong
    for name, program in zip(question.options, programs, strict=True):
        for part in (batch, *_parts(batch, program)):
            found = _outputs(rig, program, part)
            if not np.array_equal(found, base[: len(found)]):
                faults.setdefault(name, f"other bits than the heuristic on {part.rows} rows")
    return faults


def _parts(batch: Batch, program: Program) -> Iterable[Batch]:
    """The batch's first rows, fewer and fewer: of mixed rows the generated ones. A prompt's logits
    row is its last one, so it is in no smaller batch."""
    if row_symbol(program, program.launches[0]) == "logits" and not batch.generated:
        return
    rows = batch.generated or batch.prompt
    for count in sorted({rows, rows - 1, rows // 2, rows // 3, 1} - {0, batch.rows}, reverse=True):
        generated = count if batch.generated else 0
        yield Batch(generated, count - generated, batch.context)


def _outputs(rig: Rig, program: Program, batch: Batch) -> Bits:
    """The output rows of a program's one launch, from the same values every time."""
    rig.reset()
    rig.fill(batch)
    rig.runner(program, batch)()
    return rows_of(rig, program, program.launches[0].outputs[0], batch).view(np.uint32).copy()


def _against_reference(rig: Rig, program: Program, batch: Batch, found: Bits) -> str | None:
    """Compare a launch's output with the reference op on the same operands."""
    from engine.export.tuning.reference import reference_output  # imports torch

    rig.reset()
    rig.fill(batch)
    expected = reference_output(rig, program, batch)
    if expected is None:
        return None
    difference = np.linalg.norm(found.view(np.float32) - expected) / np.linalg.norm(expected)
    if difference <= TOLERANCE:
        return None
    return f"differs from the reference by {100 * difference:.2f} % of its norm"
