"""Rank 0 in this process: opens its device and instantiates what its plan retains."""

from collections.abc import Callable, Iterable, Mapping

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from engine.cache.pool import NULL_BLOCK
from engine.core.errors import DanglingReferenceError, DigestMismatchError
from engine.core.reader import Core
from engine.core.schema import Graph, Kind
from engine.device.base import BatchShape, Device, Executable
from engine.ir.program import Domain
from engine.load.plan import RankPlan
from engine.load.prune import Pruned
from engine.load.room import Room

Weights = Mapping[str, NDArray[np.generic]]


class DeviceSpec(Struct, frozen=True):
    """What a device is built for: the largest batch, weights by name, and the cache.

    num_blocks counts the null block. max_blocks: entries of a block table.
    """

    plan: RankPlan
    core: Core
    capacity: Domain
    weights: Weights
    workspace_bytes: int
    num_blocks: int
    max_blocks: int


OpenDevice = Callable[[DeviceSpec], Device]


class LocalRank(Struct, frozen=True):
    """A rank that is ready to replay: its plan, device, and executables by graph id."""

    plan: RankPlan
    device: Device
    executables: Mapping[str, Executable]


def device_spec(plan: RankPlan, core: Core, pruned: Pruned, room: Room) -> DeviceSpec:
    """Say what the rank's device must hold. Raises CoreError when plan and core disagree."""
    if plan.catalog_digest != core.digest:
        raise DigestMismatchError(
            f"rank {plan.rank}: catalog digest: expected {plan.catalog_digest}, found {core.digest}"
        )
    missing = set(plan.retained) - {graph.id for graph in pruned.graphs}
    if missing:
        raise DanglingReferenceError(f"rank {plan.rank} has no graphs {sorted(missing)}")
    size = core.manifest.model.kv.block_size
    return DeviceSpec(
        plan,
        core,
        room.capacity,
        {t.name: core.tensor(t.name, t.rank) for t in pruned.storage if t.rank == plan.rank},
        room.workspace_bytes,
        plan.num_blocks + 1,
        -(-plan.max_model_len // size),
    )


def instantiate(plan: RankPlan, device: Device, pruned: Pruned) -> LocalRank:
    """Instantiate the retained graphs, and no other."""
    graphs = {graph.id: graph for graph in pruned.graphs}
    executables = {
        name: device.instantiate(graphs[name], pruned.programs[graphs[name].program])
        for name in plan.retained
    }
    return LocalRank(plan, device, executables)


def warm(rank: LocalRank, graphs: Iterable[Graph], block_size: int) -> None:
    """Replay the smallest graph of each kind once, on a row of the null block."""
    smallest: dict[Kind, Graph] = {}
    for graph in sorted(graphs, key=lambda graph: graph.domain.tokens):
        smallest.setdefault(graph.kind, graph)
    for graph in smallest.values():
        _replay_null_row(rank, graph, block_size)


def _replay_null_row(rank: LocalRank, graph: Graph, block_size: int) -> None:
    inputs, generated = rank.device.inputs, int(graph.kind is not Kind.PREFILL)
    inputs.token_ids[0] = inputs.positions[0] = inputs.logit_rows[0] = 0
    inputs.slots[0] = NULL_BLOCK * block_size
    inputs.seg_starts[:2] = (0, 1)
    inputs.seq_lens[0] = 1
    inputs.block_tables[0, 0] = NULL_BLOCK
    shape = BatchShape(1, 1, 1, generated, generated, generated)
    rank.executables[graph.id].replay(shape)
