"""The composition root: from a configuration to a loaded, selected, pruned engine."""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from engine.batch.plan import Planner
from engine.cache.kv import KVCache
from engine.chain import StepChain
from engine.client import Engine
from engine.config import EngineConfig
from engine.core.hashing import EarlyHashing
from engine.core.reader import Core, open_core
from engine.core.schema import Manifest
from engine.core.validate import validate
from engine.describe import Serving, describe
from engine.limits import run_limits
from engine.load.budget import Budget, plan_budget, size_text
from engine.load.memory import available_bytes
from engine.load.plan import RankPlan, rank_plans
from engine.load.prune import Pruned, count, prune, storage_bytes
from engine.load.room import Room, room_for, switchable
from engine.load.select import LoadLimits, Selection, decode_capacity, select
from engine.loop import EngineLoop
from engine.metrics import EngineMetrics
from engine.phases import Phases
from engine.ranks.devices import open_device
from engine.ranks.local import (
    LocalRank,
    OpenDevice,
    device_spec,
    instantiate,
    warm,
)
from engine.runtime.grammar import SlotGrammars
from engine.runtime.runner import ModelRunner
from engine.runtime.tables import SlotTables
from engine.schedule.admission import Admission
from engine.schedule.drafts import draft_limits
from engine.schedule.pace import Pace, attention_depth
from engine.schedule.scheduler import Scheduler
from engine.types import ModelInfo

if TYPE_CHECKING:
    from engine.switch import LiveSwitch

logger = logging.getLogger("flare.engine")


class LoadPlan(Struct, frozen=True):
    """All that is decided before any device memory is taken.

    room: what the device is sized for. ranks: what each is told.
    """

    limits: LoadLimits
    selection: Selection
    pruned: Pruned
    room: Room
    ranks: tuple[RankPlan, ...]


def load_engine(
    config: EngineConfig,
    open_with: OpenDevice | None = None,
    *,
    early: EarlyHashing | None = None,
    on_instantiated: Callable[[Mapping[str, bytes]], None] = lambda _: None,
) -> Engine:
    """Load an engine: open, validate, select, prune, budget, instantiate, warm up.

    Blocks; start the engine in an event loop afterwards. ``open_with`` replaces the device of
    the plan (tests). ``early`` hashes the core's storage already. ``on_instantiated`` is called
    with the core's text files when what is left is native and holds no interpreter lock, so that
    other work can run beside it. Raises SettingsError, CoreError, SelectionError or DeviceError.
    """
    phases = Phases()
    with phases.time("open"):
        core = open_core(config.core, early=early)
    try:
        engine = _load(config, core, phases, open_with, on_instantiated)
    finally:
        core.close()
    logger.info("loaded in %.0f ms", 1000 * phases.seconds["total"])
    return engine


def _load(
    config: EngineConfig,
    core: Core,
    phases: Phases,
    open_with: OpenDevice | None,
    on_instantiated: Callable[[Mapping[str, bytes]], None],
) -> Engine:
    with phases.time("validate"):
        validate(core.manifest)
    core.raise_if_damaged()  # before the time of what comes next is spent
    with phases.time("plan"):
        plan = plan_load(config, core.manifest)
    core.raise_if_damaged()
    with phases.time("device"):
        spec = device_spec(plan.ranks[0], core, plan.pruned, plan.room)
        device = open_with(spec) if open_with else open_device(spec, config.threads, config.cpu_isa)
    with phases.time("instantiate"):
        rank = instantiate(plan.ranks[0], device, plan.pruned)
    on_instantiated(core.text_files())
    with phases.time("verify"):
        core.verify_storage()
    with phases.time("warm"):
        warm(rank, plan.pruned.graphs, core.manifest.model.kv.block_size)
    metrics = EngineMetrics(plan.pruned.graphs)
    engine = _assemble(config, core, plan, rank, metrics)
    metrics.loaded(phases.seconds)
    return engine


def plan_load(config: EngineConfig, manifest: Manifest) -> LoadPlan:
    """Decide what is loaded, on every rank; touches no device."""
    limits = run_limits(config, manifest)
    selection = select(manifest.catalog, manifest.default_mixed, config.mixed_prefill, limits)
    pruned = prune(manifest.catalog, selection)
    room = _room(config, manifest, limits, pruned)
    budget = _budget(config, manifest, limits, pruned, room)
    size = manifest.identity.tensor_parallel_size
    ranks = rank_plans(str(config.core), manifest.root_digest, size, selection, limits, budget)
    _log_plan(selection, pruned, budget)
    return LoadPlan(limits, selection, pruned, room, ranks)


def _room(config: EngineConfig, manifest: Manifest, limits: LoadLimits, pruned: Pruned) -> Room:
    """Room for what is retained and, with a live switch, for what may be retained later."""
    if not config.live_switch:
        return room_for(pruned.graphs)
    retained = [graph.id for graph in pruned.graphs]
    room = room_for(switchable(manifest.catalog, manifest.default_mixed, limits, retained))
    logger.info(
        "live switch: workspace of %s, room for either family (this one needs %s)",
        size_text(room.workspace_bytes),
        size_text(pruned.workspace_bytes),
    )
    return room


def _budget(
    config: EngineConfig, manifest: Manifest, limits: LoadLimits, pruned: Pruned, room: Room
) -> Budget:
    """Size the cache; the null block, which no sequence can own, counts as workspace."""
    kv = manifest.model.kv
    return plan_budget(
        kv,
        limits,
        storage_bytes(pruned.storage, 0),
        room.workspace_bytes + kv.bytes_per_block,
        available_bytes(),
        config.kv_cache_bytes,
    )


def _log_plan(selection: Selection, pruned: Pruned, budget: Budget) -> None:
    logger.info(
        "family %s: %d graphs retained, %d pruned; cache of %d blocks (%s)",
        selection.family.value,
        len(pruned.graphs),
        len(selection.pruned),
        budget.num_blocks,
        size_text(budget.kv_bytes),
    )
    for name, reason in selection.ineligible:
        logger.info("graph %s is not eligible: %s", name, reason)
    if budget.message is not None:
        logger.warning("%s", budget.message)


def _assemble(
    config: EngineConfig,
    core: Core,
    plan: LoadPlan,
    rank: LocalRank,
    metrics: EngineMetrics,
) -> Engine:
    """Connect scheduler, planner, runner and loop over a warm rank."""
    manifest = core.manifest
    kv, told = manifest.model.kv, rank.plan
    cache = KVCache(told.num_blocks + 1, kv.block_size, config.prefix_cache)
    pace = None
    if config.stall_seconds:
        pace = Pace(config.stall_seconds, attention_depth(manifest.model))
    drafts = draft_limits(told.draft_tokens, decode_capacity(plan.pruned.graphs))
    scheduler = Scheduler(cache, told.max_num_seqs, told.max_step_tokens, pace, drafts)
    tables = SlotTables(scheduler.max_running, told.max_model_len, kv.block_size)
    grammars = SlotGrammars(frozenset(manifest.model.eos_token_ids))
    runner = ModelRunner(rank.device, rank.executables, tables, grammars)
    loop = EngineLoop(StepChain(scheduler, Planner(plan.pruned.graphs), runner), metrics)
    info = _model_info(manifest, told.max_model_len)
    serving = Serving(
        scheduler.max_running,
        told.max_model_len,
        told.max_step_tokens,
        cache.capacity,
        kv.block_size,
        config.prefix_cache,
        plan.room.workspace_bytes,
    )
    counts = count(manifest.catalog, plan.pruned)
    return Engine(
        info,
        describe(str(config.core), manifest, plan.selection, counts, plan.ranks, serving),
        Admission(cache, info.vocab_size, info.context_length, info.eos_token_ids),
        scheduler,
        loop,
        metrics,
        config.max_queue,
        _live_switch(core, plan, rank, loop) if config.live_switch else None,
    )


def _live_switch(core: Core, plan: LoadPlan, rank: LocalRank, loop: EngineLoop) -> "LiveSwitch":
    # Most servers have no admin key: their start does without these.
    from engine.reselect import CoreChooser
    from engine.switch import LiveSwitch

    choose = CoreChooser(core, plan.limits, plan.room.workspace_bytes)
    block_size = core.manifest.model.kv.block_size
    return LiveSwitch(rank, plan.pruned, loop, choose, partial(warm, block_size=block_size))


def _model_info(manifest: Manifest, context_length: int) -> ModelInfo:
    model = manifest.model
    return ModelInfo(
        id=model.id,
        context_length=context_length,
        vocab_size=model.vocab_size,
        eos_token_ids=frozenset(model.eos_token_ids),
        core_digest=manifest.root_digest,
        created=manifest.identity.created,
    )
