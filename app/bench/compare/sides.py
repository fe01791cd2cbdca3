"""One server of a pair: what is sent to it block by block, and what that gave."""

import gc
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from pathlib import Path

from app.bench.client import Client
from app.bench.compare.cells import Cell
from app.bench.compare.legs import Leg
from app.bench.compare.power import Meter
from app.bench.compare.samples import Place, Taken, taken
from app.bench.compare.server import Server, Start, serving
from app.bench.drive import Outcome, drive, joined
from app.bench.endpoint import Endpoint
from app.bench.figures import figures
from app.bench.measure import BODY, Measured, check_served, warm
from app.bench.workloads import Request


class Side:
    """A server that is measured in turn with another; between its blocks it rests."""

    def __init__(self, server: Server, start: Start, endpoint: Endpoint, client: Client) -> None:
        self.leg = server.leg
        self.start = start
        self.endpoint = endpoint
        self._server = server
        self._client = client

    async def begin(self, cell: Cell, meter: Meter) -> None:
        """Warm the server for a cell, and count from here."""
        self._cell = cell
        self._meter = meter
        self._outcomes: list[Outcome] = []
        self._joules: list[float | None] = []
        await warm(self._client, cell.plan, cell.concurrency)
        self._before = await self.endpoint.counters()

    async def send(self, block: Sequence[Request]) -> None:
        """One block, from its first request to the end of its last."""
        beside = self.leg.beside
        with _no_collection(), beside(self._server.pid) if beside else nullcontext():
            before = self._meter.read()
            outcome = await drive(self._client, block, self._cell.concurrency)
            self._joules.append(self._meter.joules(before))
        self._outcomes.append(outcome)

    async def measured(self, repeat: int) -> Measured:
        """The blocks as one run. Raises FlareError when all of its requests failed."""
        cell, outcome = self._cell, joined(self._outcomes)
        check_served(outcome)
        grown = (await self.endpoint.counters()).since(self._before)
        found = figures(outcome, cell.plan.objective)
        return Measured(cell.concurrency, repeat, outcome, found, grown)

    async def end(self, pair: int, order: int) -> Taken:
        """The sample of what was sent. Raises as ``measured``."""
        return taken(
            Place(self._cell.name, self.leg.name, pair, order),
            await self.measured(pair),
            tuple(one.seconds for one in self._outcomes),
            _total(self._joules),
            self._server.memory("VmHWM"),
        )


@asynccontextmanager
async def side(core: Path, leg: Leg, timeout_s: float) -> AsyncIterator[Side]:
    """A fresh server while the context lasts. Raises as ``Server.ready``."""
    async with serving(core, leg) as (server, start), Endpoint(server.url) as endpoint:
        body = {**BODY, "model": await endpoint.model()}
        async with Client(f"{server.url}/v1", body, timeout_s) as client:
            yield Side(server, start, endpoint, client)


async def alternate(sides: Sequence[Side], blocks: Sequence[Sequence[Request]]) -> None:
    """Send each block to both: A B, B A, B A, A B, ... as the Thue-Morse sequence goes on.

    A speed that changes steadily between two blocks cancels over two, its bend over four, and no
    period of the machine's keeps step with the turns.
    """
    for number, block in enumerate(blocks):
        for one in reversed(sides) if number.bit_count() % 2 else sides:
            await one.send(block)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the client's garbage collector out of what it times."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _total(joules: Sequence[float | None]) -> float | None:
    known = [value for value in joules if value is not None]
    return sum(known) if len(known) == len(joules) else None
