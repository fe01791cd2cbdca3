"""The live switch: another selection of the same core, put in place between two steps."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace
from numpy import generic
from numpy.typing import NDArray

from engine.core.schema import Graph
from engine.device.base import Executable
from engine.load.plan import RankPlan
from engine.load.prune import Pruned
from engine.loop import EngineLoop
from engine.ranks.local import LocalRank


class Choice(Struct, frozen=True):
    """A selection that can be served, decided before the device is touched.

    plan: what the rank is told. weights: tensors that the device does not hold yet. graphs, ranks:
    these objects of ``/v1/config``.
    """

    plan: RankPlan
    pruned: Pruned
    weights: Mapping[str, NDArray[generic]]
    graphs: Mapping[str, Any]
    ranks: tuple[Mapping[str, Any], ...]


class Chooser(Protocol):
    """Decides a switch, in a millisecond or two. Raises SelectionError."""

    def __call__(self, plan: RankPlan, requested: bool | None, held: frozenset[str]) -> Choice:
        """Resolve ``requested``; plan: the one in force; held: tensors on the device."""
        ...


Warm = Callable[[LocalRank, Iterable[Graph]], None]
"""Replays new graphs once, before they serve."""


class LiveSwitch:
    """Changes what one rank retains while its loop serves. All methods run on the event loop.

    The device is touched by the chain's thread alone, by one call between two steps: no replay
    waits for another thread, and between two steps at most one graph is instantiated, or replayed.
    Graphs that both selections retain keep their executables. Requests are served one after the
    other, and a refused or failed one leaves everything as it was.
    """

    def __init__(
        self,
        rank: LocalRank,
        pruned: Pruned,
        loop: EngineLoop,
        choose: Chooser,
        warm: Warm,
    ) -> None:
        self._rank = rank
        self._held = _tensors(rank.plan, pruned)
        self._loop = loop
        self._choose = choose
        self._warm = warm
        self._epoch = 0
        self._lock = asyncio.Lock()

    async def to(self, requested: bool | None) -> dict[str, Any]:
        """Serve another selection from the next step on; return what changed in ``/v1/config``.

        Raises SelectionError or DeviceError as loading does, EngineUnavailableError when the engine
        ends meanwhile.
        """
        async with self._lock:
            choice = self._choose(self._rank.plan, requested, self._held)
            try:
                rank = await self._instantiate(choice)
                await self._loop.adopt(choice.pruned.graphs, rank.executables)
                self._rank = rank
                self._held = _tensors(rank.plan, choice.pruned)
                self._epoch += 1
            finally:  # the new selection's tensors, or after a failure the old one's
                if not self._loop.closing:
                    await self._loop.between_steps(self._rank.device.keep, self._held)
            return {
                "graphs": {**choice.graphs, "epoch": self._epoch},
                "ranks": [dict(rank) for rank in choice.ranks],
            }

    async def _instantiate(self, choice: Choice) -> LocalRank:
        """Instantiate what is new beside what serves.

        Where it reads tensors that were not held, the smallest graph of each kind is replayed once;
        else all is in memory, and that replay would only make a step late.
        """
        device, serving = self._rank.device, self._rank.executables
        between = self._loop.between_steps
        await between(device.hold, choice.weights)
        made: dict[str, Executable] = {}
        new = []
        for graph in choice.pruned.graphs:
            known = serving.get(graph.id)
            if known is None:
                program = choice.pruned.programs[graph.program]
                known = await between(device.instantiate, graph, program)
                new.append(graph)
            made[graph.id] = known
        rank = replace(self._rank, plan=choice.plan, executables=made)
        if choice.weights:
            for kind in dict.fromkeys(graph.kind for graph in new):
                await between(self._warm, rank, [graph for graph in new if graph.kind is kind])
        return rank


def _tensors(plan: RankPlan, pruned: Pruned) -> frozenset[str]:
    """Names of the storage tensors that a rank needs."""
    return frozenset(tensor.name for tensor in pruned.storage if tensor.rank == plan.rank)
