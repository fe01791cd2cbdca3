"""Run a comparison: pairs of fresh servers, in turn first and second, the same requests to both."""

import asyncio
import gc
import secrets
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from app.bench.calibrate import Probe
from app.bench.client import Client
from app.bench.compare.cells import Cell, check_cells
from app.bench.compare.legs import FAMILIES, Leg, switchable
from app.bench.compare.power import Meter
from app.bench.compare.samples import Place, Taken, taken
from app.bench.compare.server import Server, Start, serving
from app.bench.endpoint import Endpoint
from app.bench.http import run
from app.bench.measure import BODY, measure, warm

PAIRS_A_REPEAT = 2  # A B, then B A
PROBE_REPEAT = 10**6  # a seed that no pair has


class Comparison(Struct, frozen=True):
    """What is to be done. legs: base and other. groups: cells that share a server, in order.

    repeats: of A B, B A; each of the two pairs has requests of its own. third: another leg that
    is only started, once a pair. probe: on each server, before its cells, measure one short run of
    the first one, too, which no figure counts: these calibrate the forecasts.
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
    def pairs(self) -> int:
        """Pairs of each cell."""
        return PAIRS_A_REPEAT * self.repeats

    @property
    def units(self) -> int:
        """Steps of progress: the warm starts, then each cell of each leg of each pair."""
        return len(self.legs) * (1 + len(self.cells) * self.pairs)


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
        """Warm starts, then every pair of every group, repeat by repeat."""
        await self._warm_starts()
        for repeat in range(self._comparison.repeats):
            for group in self._comparison.groups:
                for half in range(PAIRS_A_REPEAT):
                    await self._pair(group, PAIRS_A_REPEAT * repeat + half)

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
        legs = self._comparison.legs if pair % 2 == 0 else self._comparison.legs[::-1]
        for order, leg in enumerate(legs):
            await self._visit(group, leg, pair, order)
        third = self._comparison.third
        if third is not None and group == self._comparison.groups[0]:
            async with serving(self._comparison.core, third) as (_, start):
                self._results.starts.append(start)

    async def _visit(self, group: Sequence[Cell], leg: Leg, pair: int, order: int) -> None:
        """A fresh server, and every cell of the group on it."""
        async with serving(self._comparison.core, leg) as (server, start):
            self._results.starts.append(start)
            async with Endpoint(server.url) as endpoint:
                model = await endpoint.model()
                if self._comparison.probe:
                    await self._probe(server, endpoint, model, group[0], pair)
                for cell in group:
                    place = Place(cell.name, leg.name, pair, order)
                    one = await self._measure(server, endpoint, model, cell, place)
                    self._results.taken.append(one)
                    self._advance(_progress(one, self._comparison.pairs))

    async def _probe(
        self, server: Server, endpoint: Endpoint, model: str, cell: Cell, pair: int
    ) -> None:
        """One short run of the cell, with requests that no pair has."""
        plan = replace(cell.plan, requests=2 * cell.concurrency, rate=None)
        repeat, body = PROBE_REPEAT + pair, {**BODY, "model": model}
        async with Client(f"{server.url}/v1", body, plan.timeout_s) as client:
            await warm(client, plan, cell.concurrency)
            with _no_collection():
                found = await measure(client, endpoint, plan, cell.concurrency, repeat, ours=True)
        made = Probe(server.leg.name, tuple(plan.made(cell.concurrency, repeat)), found)
        self._results.probes.setdefault(cell.name, []).append(made)

    async def _measure(
        self, server: Server, endpoint: Endpoint, model: str, cell: Cell, place: Place
    ) -> Taken:
        plan, meter = cell.plan, self._comparison.meter
        body = {**BODY, "model": model}
        async with Client(f"{server.url}/v1", body, plan.timeout_s) as client:
            await warm(client, plan, cell.concurrency)
            beside = server.leg.beside
            with _no_collection(), beside(server.pid) if beside else nullcontext():
                before = meter.read()
                measured = await measure(
                    client, endpoint, plan, cell.concurrency, place.pair, ours=True
                )
                joules = meter.joules(before)
        return taken(place, measured, joules, server.memory("VmHWM"))


def room_leg() -> Leg:
    """The separate family with room for either, behind a key that nobody knows."""
    return switchable(secrets.token_urlsafe(16))


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the client's garbage collector out of what it times."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _progress(one: Taken, pairs: int) -> str:
    sample = one.sample
    failed = f", {len(sample.failures)} failed" if sample.failures else ""
    return (
        f"{sample.cell}, pair {sample.pair + 1} of {pairs}, {sample.leg}: "
        f"{sample.figures['tok_s']:.1f} tok/s, "
        f"first token p50 {sample.figures['ttft_p50']:.0f} ms{failed}"
    )
