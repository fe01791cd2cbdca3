"""Replays of canaries in ``flare verify``: every graph against what the core says that it computes,
and each sequence of a full batch against the sequence alone."""

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from engine.config import EngineConfig
from engine.core.reader import Core
from engine.core.schema import Canary
from engine.device.canaries import SEED, CanaryReplays, canary_graphs, canary_of, rule_of
from engine.errors import SelectionError
from engine.factory import LoadPlan, plan_load
from engine.ranks.devices import open_device
from engine.ranks.local import OpenDevice, device_spec, instantiate


class CanaryResult(Struct, frozen=True):
    """A graph's result. wrong: sequences whose logits differ in bits from those of each alone.

    stored: what the core says, if it says something; found: what was computed.
    """

    wrong: int
    found: Canary
    stored: Canary | None

    @property
    def sequences(self) -> int:
        return self.found.rows

    @property
    def as_stored(self) -> bool:
        """Whether nothing else is stored for the graph."""
        return self.stored is None or self.stored.digest == self.found.digest


def replay_canaries(core: Core, open_with: OpenDevice | None = None) -> Iterator[CanaryResult]:
    """Load every graph that this machine can serve, and replay each, smallest first.

    Raises DeviceError when the core's device is not here.
    """
    manifest = core.manifest
    stored = {canary.graph: canary for canary in manifest.catalog.canaries}
    seed = next((canary.seed for canary in stored.values()), SEED)
    graphs = canary_graphs(manifest.catalog.graphs)
    rule, blocks = rule_of(manifest.model, manifest.limits, graphs, seed)
    plan = _plan(core, rule.length, blocks)
    spec = device_spec(plan.ranks[0], core, plan.pruned, plan.room)
    device = open_with(spec) if open_with else open_device(spec, None, "auto")
    rank = instantiate(plan.ranks[0], device, plan.pruned)
    loaded = [graph for graph in graphs if graph.id in rank.executables]
    size = manifest.model.kv.block_size
    replays = CanaryReplays(rule, loaded, device, rank.executables, size)
    for graph in loaded:
        together, alone = replays.both(graph)
        wrong = int((together != alone).any(axis=1).sum())
        yield CanaryResult(wrong, canary_of(graph, seed, together), stored.get(graph.id))


def _plan(core: Core, length: int, blocks: int) -> LoadPlan:
    """Both families where they were captured, and a cache of one block for each sequence."""
    manifest = core.manifest
    config = EngineConfig(
        core=core.path,
        max_model_len=length,
        kv_cache_bytes=blocks * manifest.model.kv.bytes_per_block,
    )
    try:
        return plan_load(replace(config, mixed_prefill=True), manifest)
    except SelectionError:
        return plan_load(config, manifest)
