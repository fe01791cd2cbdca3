"""Interleaved timing: every option once per round, in an order drawn anew."""

import random
from collections.abc import Callable, Sequence

from msgspec import Struct

from engine.export.tuning.intervals import settled

WARM_UP = 2
"""Runs of each option whose times are not kept."""
LOOK_EVERY = 3
"""Rounds between two looks at whether the question is settled."""


class Effort(Struct, frozen=True):
    """How long one question may take. Rounds: samples of each option. seconds: for all options
    together, after the least rounds. early: stop as soon as the answer is settled."""

    least: int
    most: int
    seconds: float
    early: bool


def sample(
    options: Sequence[Callable[[], None]], effort: Effort, seed: int, clock: Callable[[], float]
) -> list[list[float]]:
    """Time the options; returns the seconds of each, in the order of the rounds.

    Whatever slows the machine for a while meets all options alike, since each round runs all.
    """
    for run in list(options) * WARM_UP:
        run()
    order, shuffle = list(range(len(options))), random.Random(seed).shuffle
    samples: list[list[float]] = [[] for _ in options]
    start = clock()
    for number in range(1, effort.most + 1):
        shuffle(order)
        for index in order:
            before = clock()
            options[index]()
            samples[index].append(max(clock() - before, 1e-9))
        if number < effort.least:
            continue
        late = clock() - start > effort.seconds
        if late or (effort.early and number % LOOK_EVERY == 0 and settled(samples)):
            break
    return samples
