"""Blocks in turn on a machine whose speed drifts: what a comparison shows, and how often."""

import asyncio
import math
import random
from typing import Any, cast

from app.bench.compare.analysis import difference
from app.bench.compare.samples import THROUGHPUT
from app.bench.compare.sides import Side, alternate
from app.bench.workloads import Request

LEGS = ("separate", "mixed")
REPEATS, BLOCKS = 20, 16
TOKENS = 100.0


class Machine:
    """Its speed follows a trend and a slow random walk; each block has noise of its own."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._level = self._trend = 0.0

    def turn(self) -> None:
        """The trend of a repeat, up to a third faster or slower from its begin to its end."""
        self._trend = self._draw.uniform(-0.3, 0.3) / (2 * BLOCKS)

    def seconds(self) -> float:
        """Of a block at the usual share of the machine."""
        self._level += self._trend + self._draw.gauss(-0.05 * self._level, 0.05)
        return math.exp(self._level + self._draw.gauss(0, 0.1))


class Recorder:
    """Stands for a server: takes as long as the machine says, times a factor."""

    def __init__(self, name: str, machine: Machine, factor: float, sent: list[str]) -> None:
        self.name, self.machine, self.factor, self.sent = name, machine, factor, sent
        self.seconds = 0.0

    async def send(self, block: Any) -> None:
        self.sent.append(self.name)
        self.seconds += self.machine.seconds() * self.factor


def shown(draw: random.Random, slower: float) -> str | None:
    """Which leg a comparison shows to be better; ``slower``: of mixed."""
    machine = Machine(draw)
    values: dict[str, list[float]] = {leg: [] for leg in LEGS}
    for pair in range(REPEATS):
        machine.turn()
        both = [Recorder(leg, machine, 1 + slower * (leg == "mixed"), []) for leg in LEGS]
        ordered = both[::-1] if pair % 2 else both
        asyncio.run(alternate(cast(list[Side], ordered), [[Request("a", 1, 1)]] * BLOCKS))
        for one in both:
            values[one.name].append(BLOCKS * TOKENS / one.seconds)
    found = {leg: tuple(speeds) for leg, speeds in values.items()}
    return difference(THROUGHPUT, found, LEGS, 0.95, True).better


def test_blocks_go_in_turn_without_a_period() -> None:
    sent: list[str] = []
    machine = Machine(random.Random(0))
    both = [Recorder(leg, machine, 1.0, sent) for leg in ("A", "B")]
    asyncio.run(alternate(cast(list[Side], both), [[Request("a", 1, 1)]] * 8))
    assert "".join(sent) == "ABBABAABBAABABBA"


def test_drift_is_no_difference_as_often_as_the_level_says() -> None:
    draw = random.Random(1)
    wrong = sum(shown(draw, 0.0) is not None for _ in range(150))
    assert wrong <= 0.1 * 150


def test_five_per_cent_are_shown_through_drift() -> None:
    draw = random.Random(2)
    right = sum(shown(draw, 0.05) == "separate" for _ in range(60))
    assert right >= 0.9 * 60
