"""Cells: what is sent, at how many streams, in which blocks; which a core cannot run."""

import random
from collections.abc import Sequence
from dataclasses import replace

from msgspec import Struct

from app.bench.plan import Plan
from app.bench.workloads import Request, Workload
from engine.errors import SettingsError

BLOCK = 4
"""Requests of a block for each stream: most of them meet streams that are under way."""


class Cell(Struct, frozen=True):
    """One load: ``plan`` at ``concurrency`` streams. prompt_tokens: of a cell of a heat map."""

    name: str
    plan: Plan
    concurrency: int
    prompt_tokens: int | None = None

    def blocks(self, repeat: int) -> list[Sequence[Request]]:
        """The requests of one repeat in the parts that are sent one by one."""
        return blocks(self.plan.made(self.concurrency, repeat), self.concurrency)


def blocks(requests: Sequence[Request], concurrency: int) -> list[Sequence[Request]]:
    """Cut a closed loop into blocks of BLOCK requests for each stream, the last with the rest.

    Arrival times belong together: such requests are one block.
    """
    size = BLOCK * concurrency
    count = 1 if requests[0].at is not None else max(1, len(requests) // size)
    starts = [size * i for i in range(count)]
    ends = [*starts[1:], len(requests)]
    return [requests[start:end] for start, end in zip(starts, ends, strict=True)]


def load_cells(plan: Plan) -> tuple[Cell, ...]:
    """A cell for each number of streams."""
    return tuple(Cell(f"{plan.name} at {n}", plan, n) for n in plan.concurrency)


def grid_cells(plan: Plan, lengths: Sequence[int], output: int) -> tuple[Cell, ...]:
    """A cell for each prompt length and number of streams."""
    return tuple(
        Cell(
            f"{length} tokens at {n}",
            replace(plan, source=fixed_prompts(length, output)),
            n,
            length,
        )
        for length in lengths
        for n in plan.concurrency
    )


def fixed_prompts(length: int, output: int) -> Workload:
    """Prompts of one length; outputs vary by half, or all streams would begin and end together."""
    least, most = max(1, output // 2), output + output // 2

    def lengths(draw: random.Random) -> tuple[int, int]:
        return length, draw.randint(least, most)

    about = f"prompts of {length} tokens, answers of {least} to {most}"
    return Workload(f"prompts-{length}", about, length + most, lengths)


def check_cells(cells: Sequence[Cell], max_num_seqs: int, max_model_len: int) -> None:
    """Refuse cells that would not measure what they say. Raises SettingsError naming them all."""
    faults = [
        f"{cell.name} ({fault})"
        for cell in cells
        if (fault := _fault(cell, max_num_seqs, max_model_len)) is not None
    ]
    if faults:
        raise SettingsError(
            f"{len(faults)} of {len(cells)} cells cannot be run on this core: {'; '.join(faults)}",
            "leave them out, or give a core with larger limits (flare inspect CORE shows them)",
        )


def _fault(cell: Cell, max_num_seqs: int, max_model_len: int) -> str | None:
    if cell.concurrency > max_num_seqs:
        return f"more streams than the {max_num_seqs} sequences that run at once"
    longest = cell.plan.longest()
    if longest > max_model_len:
        return f"requests of {longest} tokens, prompt and output, of {max_model_len} that fit"
    if cell.plan.load(cell.concurrency, 0).requests < cell.concurrency:
        return "fewer requests than streams"
    return None
