"""Run a comparison: pairs of fresh servers side by side, the same blocks to both in turn."""

import asyncio
import secrets
import signal
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from msgspec import Struct, field, structs

from app.bench.calibrate import Probe
from app.bench.compare.cells import Cell, check_cells
from app.bench.compare.legs import FAMILIES, Leg, switchable
from app.bench.compare.power import Meter
from app.bench.compare.samples import Taken
from app.bench.compare.server import Start, serving
from app.bench.compare.sides import Side, alternate, side
from app.bench.endpoint import Endpoint
from app.bench.http import run

PROBE_REPEAT = 10**6  # a seed that no pair has


class Comparison(Struct, frozen=True):
    """What is to be done. legs: base and other. groups: cells that share a server, in order.

    repeats: pairs of fresh servers, each with requests of its own. third: another leg that is only
    started, once a pair. probe: on each server, before its cells or, every other pair, behind them,
    measure one short run of the first one, too, which no figure counts: these calibrate the
    forecasts.
    """

    core: Path
    groups: tuple[tuple[Cell, ...], ...]
    repeats: int
    meter: Meter
    legs: tuple[Leg, Leg] = FAMILIES
    third: Leg | None = None
    probe: bool = False

    @property
    def cells(self) -> tuple[Cell, ...]:
        """All cells, in order."""
        return tuple(cell for group in self.groups for cell in group)

    @property
    def units(self) -> int:
        """Steps of progress: the warm starts, then each cell of each leg of each pair."""
        return len(self.legs) * (1 + len(self.cells) * self.repeats)


class Results(Struct):
    """What was measured so far; grows while the comparison runs."""

    taken: list[Taken] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)
    configs: dict[str, dict[str, Any]] = field(default_factory=dict)
    probes: dict[str, list[Probe]] = field(default_factory=dict)  # by the first cell of a group


Advance = Callable[[str], None]
"""Called after each unit of progress, with a line that tells of it."""


def compare_legs(comparison: Comparison, results: Results, advance: Advance) -> None:
    """Measure all; ``results`` holds what there is also when this raises.

    Raises SettingsError for cells that the servers cannot run as meant, the error of a server
    that does not start, FlareError when all requests of a run failed, and KeyboardInterrupt after
    Ctrl-C or SIGTERM, with no server left running.
    """
    run(_until_told(_Run(comparison, results, advance).all()))


async def _until_told(work: Any) -> None:
    """Run the work; SIGTERM ends it as Ctrl-C does."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    told: list[signal.Signals] = []

    def stop() -> None:
        told.append(signal.SIGTERM)
        task.cancel()

    loop.add_signal_handler(signal.SIGTERM, stop)
    try:
        await task
    except asyncio.CancelledError:
        if told:
            raise KeyboardInterrupt from None
        raise
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


class _Run:
    """One comparison under way."""

    def __init__(self, comparison: Comparison, results: Results, advance: Advance) -> None:
        self._comparison = comparison
        self._results = results
        self._advance = advance

    async def all(self) -> None:
        """Warm starts, then a pair of every group, repeat by repeat."""
        await self._warm_starts()
        for pair in range(self._comparison.repeats):
            for group in self._comparison.groups:
                await self._pair(group, pair)

    async def _warm_starts(self) -> None:
        """One start of each leg, not counted: files get into memory, and limits are known."""
        for leg in self._comparison.legs:
            async with serving(self._comparison.core, leg) as (server, start):
                limits = start.scheduler
                check_cells(self._comparison.cells, limits["max_num_seqs"], limits["max_model_len"])
                async with Endpoint(server.url) as endpoint:
                    self._results.configs[leg.name] = await endpoint.config() or {}
            self._advance(f"{leg.name}: warm start, ready in {start.ready_s:.2f} s")

    async def _pair(self, group: Sequence[Cell], pair: int) -> None:
        """Both legs' servers, in turn first and second, and every cell of the group on them."""
        comparison = self._comparison
        legs = reversed(comparison.legs) if pair % 2 else comparison.legs
        async with AsyncExitStack() as stack:
            sides = []
            for leg in legs:
                opened = side(comparison.core, leg, group[0].plan.timeout_s)
                sides.append(await stack.enter_async_context(opened))
                self._results.starts.append(sides[-1].start)
                self._results.configs[leg.name] = await sides[-1].endpoint.config() or {}
            if comparison.probe and not pair % 2:
                await self._probe(sides, group[0], pair)
            for cell in group:
                await self._measure(cell, sides, pair)
            if comparison.probe and pair % 2:  # on servers whose memory is all in use by now
                await self._probe(sides, group[0], pair)
        third = comparison.third
        if third is not None and group == comparison.groups[0]:
            async with serving(comparison.core, third) as (_, start):
                self._results.starts.append(start)

    async def _probe(self, sides: Sequence[Side], cell: Cell, pair: int) -> None:
        """One short run of the cell on each, with requests that no pair has."""
        plan = replace(cell.plan, requests=2 * cell.concurrency, rate=None)
        short, repeat = structs.replace(cell, plan=plan), PROBE_REPEAT + pair
        requests = tuple(plan.made(cell.concurrency, repeat))
        for one in sides:
            await one.begin(short, self._comparison.meter)
            await one.send(requests)
            made = Probe(one.leg.name, requests, await one.measured(repeat))
            self._results.probes.setdefault(cell.name, []).append(made)

    async def _measure(self, cell: Cell, sides: Sequence[Side], pair: int) -> None:
        for one in sides:
            await one.begin(cell, self._comparison.meter)
        await alternate(sides, cell.blocks(pair))
        for order, one in enumerate(sides):
            found = await one.end(pair, order)
            self._results.taken.append(found)
            self._advance(_progress(found, self._comparison.repeats))


def room_leg() -> Leg:
    """The separate family with room for either, behind a key that nobody knows."""
    return switchable(secrets.token_urlsafe(16))


def _progress(one: Taken, pairs: int) -> str:
    sample = one.sample
    failed = f", {len(sample.failures)} failed" if sample.failures else ""
    return (
        f"{sample.cell}, pair {sample.pair + 1} of {pairs}, {sample.leg}: "
        f"{sample.figures['tok_s']:.1f} tok/s, "
        f"first token p50 {sample.figures['ttft_p50']:.0f} ms{failed}"
    )
