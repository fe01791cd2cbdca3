"""A scripted device, and the real engine on it, for tests that need no model.

The device is exact about the cache: it stores what each row wrote and computes the next token
from what the launch reads back through the block tables. A wrong slot, a stale block, a wrong
role or a lost recomputation is an error, or another text.
"""

import hashlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from engine.batch.plan import Planner
from engine.cache.kv import KVCache
from engine.chain import StepChain
from engine.client import Engine
from engine.core.schema import FAMILY_OF_KIND, Catalog, Family, Graph, Kind
from engine.describe import rank_values, served_graphs
from engine.device.base import BatchShape, InputBuffers, capacity_of
from engine.device.reference.sampler import ReferenceSampler
from engine.ir.program import Domain, Program
from engine.load.plan import RankPlan
from engine.load.prune import count, prune
from engine.load.select import LoadLimits, decode_capacity, select
from engine.loop import EngineLoop
from engine.metrics import EngineMetrics
from engine.ranks.local import LocalRank
from engine.runtime.grammar import SlotGrammars
from engine.runtime.runner import ModelRunner
from engine.runtime.tables import SlotTables
from engine.schedule.admission import Admission
from engine.schedule.drafts import draft_limits
from engine.schedule.scheduler import Scheduler
from engine.switch import Choice, LiveSwitch
from engine.types import ModelInfo, SamplingParams

EMPTY = -1
PROMPT, GENERATED = 0, 1


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What a scripted device does.

    scripts: prompt ids -> the ids that the model says then (the longest matching prompt counts;
    after its script it says the first end token). Other prompts follow a hash of all tokens seen,
    never an end token. nan_prompts: prompts whose logits are not finite. delay: seconds per replay.
    """

    vocab_size: int = 256
    logits_width: int = 256
    eos: tuple[int, ...] = (0,)
    scripts: Mapping[tuple[int, ...], Sequence[int]] = field(default_factory=dict)
    nan_prompts: frozenset[tuple[int, ...]] = frozenset()
    delay: float = 0.0


def next_token(behaviour: Behaviour, tokens: Sequence[int], roles: Sequence[int] = ()) -> int:
    """The token that the scripted model puts first after ``tokens``.

    roles: per token, PROMPT or GENERATED; empty: all prompt. They are part of the hash.
    """
    context = tuple(tokens)
    matches = [p for p in behaviour.scripts if context[: len(p)] == p]
    if matches:
        prompt = max(matches, key=len)
        script = behaviour.scripts[prompt]
        done = len(context) - len(prompt)
        return script[done] if done < len(script) else behaviour.eos[0]
    allowed = [t for t in range(behaviour.vocab_size) if t not in behaviour.eos]
    return allowed[_hash(context, roles) % len(allowed)]


def _hash(tokens: Sequence[int], roles: Sequence[int]) -> int:
    data = np.array([tokens, roles or [PROMPT] * len(tokens)], np.int64).tobytes()
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def expected_tokens(behaviour: Behaviour, prompt: Sequence[int], count: int) -> list[int]:
    """The ids that a greedy request with ``max_tokens=count`` must get, end token included."""
    tokens, roles = list(prompt), [PROMPT] * len(prompt)
    for _ in range(count):
        tokens.append(next_token(behaviour, tokens, roles))
        roles.append(GENERATED)
        if tokens[-1] in behaviour.eos:
            break
    return tokens[len(prompt) :]


class CheckedSampler(ReferenceSampler):
    """The oracle's sampler, which also knows the slots in use: none is set twice, none lost."""

    def __init__(
        self, vocab_size: int, slots: int, logits: Callable[[], NDArray[np.float32]]
    ) -> None:
        super().__init__(vocab_size, slots, logits)
        self._in_use: set[int] = set()

    @property
    def slots_in_use(self) -> frozenset[int]:
        return frozenset(self._in_use)

    def set(
        self,
        slot: int,
        params: SamplingParams,
        stop_ids: Sequence[int],
        prompt_ids: Sequence[int],
        output_ids: Sequence[int],
    ) -> None:
        if slot in self._in_use:
            raise AssertionError(f"slot {slot} is in use")
        self._in_use.add(slot)
        super().set(slot, params, stop_ids, prompt_ids, output_ids)

    def clear(self, slot: int) -> None:
        self._in_use.remove(slot)
        super().clear(slot)


class ScriptedDevice:
    """Implements ``engine.device.base.Device`` in numpy.

    ``replays``: the shape and graph id of every replay. ``fail``: an exception that the next
    replay raises; ``refuse``: one that the next instantiation raises. ``delay`` may be changed
    while serving.
    """

    def __init__(
        self, behaviour: Behaviour, domain: Domain, num_blocks: int, block_size: int, width: int
    ) -> None:
        self.behaviour = behaviour
        self.delay = behaviour.delay
        self.fail: Exception | None = None
        self.refuse: Exception | None = None
        self.draft_tokens = 0
        self.made: list[str] = []  # graph ids, as they were instantiated
        self.replays: list[tuple[str, BatchShape]] = []
        self.written: list[tuple[int, int]] = []  # (cache slot, absolute position)
        self._block_size = block_size
        shape = (num_blocks * block_size,)
        self._tokens, self._positions, self._roles = (np.full(shape, EMPTY) for _ in range(3))
        self._inputs = _inputs(domain, width)
        self._logits = np.zeros((0, behaviour.logits_width), np.float32)
        self._sampler = CheckedSampler(behaviour.vocab_size, domain.seqs, lambda: self._logits)

    @property
    def inputs(self) -> InputBuffers:
        return self._inputs

    @property
    def sampler(self) -> CheckedSampler:
        return self._sampler

    @property
    def logits(self) -> NDArray[np.float32]:
        return self._logits

    def instantiate(self, graph: Graph, program: Program) -> "ScriptedExecutable":
        if self.refuse is not None:
            error, self.refuse = self.refuse, None
            raise error
        self.made.append(graph.id)
        return ScriptedExecutable(self, graph)

    def hold(self, weights: Mapping[str, NDArray[np.generic]]) -> None:
        assert not weights, "scripted graphs have no weights"

    def keep(self, names: Collection[str]) -> None:
        assert not names, "scripted graphs have no weights"

    def scrub(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            rows = slice(block * self._block_size, (block + 1) * self._block_size)
            self._tokens[rows] = self._positions[rows] = self._roles[rows] = EMPTY

    def replay(self, graph: Graph, shape: BatchShape) -> None:
        """Check the inputs, write the rows, and compute the wanted logits rows."""
        if self.delay:
            time.sleep(self.delay)
        if self.fail is not None:
            error, self.fail = self.fail, None
            raise error
        self.replays.append((graph.id, shape))
        self._check(graph, shape)
        self._store(shape)
        rows = self._inputs.logit_rows[: shape.logits].tolist()
        self._logits = np.array([self._row_logits(row, shape) for row in rows])

    def _check(self, graph: Graph, shape: BatchShape) -> None:
        domain = graph.domain
        if shape.tokens > domain.tokens or shape.seqs > domain.seqs or shape.logits > domain.logits:
            raise AssertionError(f"{shape} exceeds {graph.id} {domain}")
        starts = self._inputs.seg_starts[: shape.seqs + 1]
        counts = np.diff(starts)
        if starts[0] != 0 or starts[-1] != shape.tokens or counts.min() < 1:
            raise AssertionError(f"segments do not tile the rows: {starts}")
        if graph.kind is Kind.DECODE and counts.max() > 1 + self.draft_tokens:
            raise AssertionError("a decode graph carries a row and its drafts per segment")
        if shape.generated_tokens != starts[shape.generated_seqs]:
            raise AssertionError("the role border is not a segment border")
        for s, (start, end) in enumerate(pairwise(starts)):
            positions = self._inputs.positions[start:end]
            if positions[-1] + 1 != self._inputs.seq_lens[s] or (np.diff(positions) != 1).any():
                raise AssertionError(f"segment {s} is not a run of positions: {positions}")

    def _store(self, shape: BatchShape) -> None:
        slots = self._inputs.slots[: shape.tokens]
        positions = self._inputs.positions[: shape.tokens]
        if slots.min() < self._block_size or len(set(slots.tolist())) < len(slots):
            raise AssertionError(f"rows write to the null block or to the same slot: {slots}")
        self._tokens[slots] = self._inputs.token_ids[: shape.tokens]
        self._positions[slots] = positions
        self._roles[slots] = np.arange(shape.tokens) < shape.generated_tokens
        self.written += zip(slots.tolist(), positions.tolist(), strict=True)

    def _row_logits(self, row: int, shape: BatchShape) -> NDArray[np.float32]:
        """Logits of one row, from the keys that its segment's block table shows."""
        starts = self._inputs.seg_starts[: shape.seqs + 1]
        segment = int(np.searchsorted(starts, row, side="right")) - 1
        position = int(self._inputs.positions[row])
        keys = np.arange(position + 1)
        blocks = self._inputs.block_tables[segment, keys // self._block_size]
        slots = blocks * self._block_size + keys % self._block_size
        if (self._positions[slots] != keys).any():
            raise AssertionError(f"row {row} reads keys of other positions")
        return self._logits_after(self._tokens[slots].tolist(), self._roles[slots].tolist())

    def _logits_after(self, tokens: list[int], roles: list[int]) -> NDArray[np.float32]:
        behaviour = self.behaviour
        rng = np.random.Generator(np.random.Philox(key=_hash(tokens, roles)))
        logits = rng.standard_normal(behaviour.logits_width, np.float32)
        if any(tuple(tokens[: len(p)]) == p for p in behaviour.nan_prompts):
            logits[:] = np.nan
        logits[next_token(behaviour, tokens, roles)] = logits.max() + 1
        return logits


@dataclass(frozen=True, slots=True)
class ScriptedExecutable:
    """A graph on a scripted device."""

    device: ScriptedDevice
    graph: Graph

    def replay(self, shape: BatchShape) -> None:
        self.device.replay(self.graph, shape)


def _inputs(domain: Domain, width: int) -> InputBuffers:
    def buffer(*shape: int) -> NDArray[np.int32]:
        return np.full(shape, -7, np.int32)  # never a valid id, slot or position

    return InputBuffers(
        token_ids=buffer(domain.tokens),
        positions=buffer(domain.tokens),
        slots=buffer(domain.tokens),
        seg_starts=buffer(domain.seqs + 1),
        seq_lens=buffer(domain.seqs),
        block_tables=buffer(domain.seqs, width),
        logit_rows=buffer(domain.logits),
    )


def synthetic_graph(kind: Kind, tokens: int, seqs: int, logits: int) -> Graph:
    """A catalog entry without kernels."""
    return Graph(
        id=f"{kind.value}-{tokens}",
        kind=kind,
        family=FAMILY_OF_KIND[kind],
        domain=Domain(tokens, seqs, logits),
        program=f"{kind.value}-{tokens}",
        kernels=(),
        tuning=(),
        layouts=(),
        workspace_bytes=0,
    )


def synthetic_graphs(
    max_num_seqs: int, max_step_tokens: int, mixed: bool, logits: int = 64
) -> tuple[Graph, ...]:
    """A complete catalog: decode 1, 2, 4 .. seqs; prefill and mixed of a few sizes."""
    sizes = [2**i for i in range(max_num_seqs.bit_length()) if 2**i < max_num_seqs]
    graphs = [synthetic_graph(Kind.DECODE, c, c, c) for c in [*sizes, max_num_seqs]]
    chunks = sorted({max(1, max_step_tokens // 4), max_step_tokens})
    for tokens in chunks:
        seqs = min(tokens, max_num_seqs)
        graphs.append(synthetic_graph(Kind.PREFILL, tokens, seqs, max(seqs, min(logits, tokens))))
    for tokens in chunks if mixed else ():
        seqs = 2 * max_num_seqs
        graphs.append(synthetic_graph(Kind.MIXED, tokens, seqs, max(seqs, logits)))
    return tuple(graphs)


@dataclass(frozen=True, slots=True)
class ScriptedChooser:
    """Implements ``engine.switch.Chooser`` on a catalog of synthetic graphs."""

    catalog: Catalog
    limits: LoadLimits

    def __call__(self, plan: RankPlan, requested: bool | None, held: frozenset[str]) -> Choice:
        selection = select(self.catalog, True, requested, self.limits)
        pruned = prune(self.catalog, selection)
        told = replace(
            plan, requested=requested, family=selection.family, retained=selection.retained
        )
        graphs = served_graphs(selection, count(self.catalog, pruned), 0)
        return Choice(told, pruned, {}, graphs, (rank_values(told),))


def _plan(max_num_seqs: int, max_model_len: int, max_step_tokens: int) -> RankPlan:
    limits = (max_num_seqs, max_model_len, max_step_tokens)
    return RankPlan(0, 1, "x", "0" * 64, "cpu", None, Family.SEPARATE, (), *limits, 1)


@dataclass(frozen=True, slots=True)
class ScriptedEngine:
    """The real engine, its scripted device, and the parts that tests look into."""

    engine: Engine
    device: ScriptedDevice
    scheduler: Scheduler
    cache: KVCache

    def expected(self, prompt: Sequence[int], count: int) -> list[int]:
        """The ids that a greedy request must get."""
        return expected_tokens(self.device.behaviour, prompt, count)


def scripted_engine(
    behaviour: Behaviour | None = None,
    *,
    mixed: bool = True,
    max_num_seqs: int = 4,
    max_model_len: int = 256,
    max_step_tokens: int = 32,
    num_blocks: int = 65,
    block_size: int = 16,
    prefix_cache: bool = True,
    max_queue: int = 64,
    model_id: str = "scripted",
    live_switch: bool = True,
    captured_mixed: bool = True,
    draft_tokens: int = 0,
) -> ScriptedEngine:
    """Build the real engine on a scripted device. Call ``engine.start()`` in an event loop.

    num_blocks counts the null block, which is never handed out. mixed: the family served at first.
    captured_mixed: whether a live switch finds mixed graphs. draft_tokens: 0 speculates not.
    """
    behaviour = behaviour or Behaviour()
    captured = synthetic_graphs(max_num_seqs, max_step_tokens, captured_mixed, logits=12)
    choose = ScriptedChooser(
        Catalog(captured, (), (), (), {graph.program: None for graph in captured}),
        LoadLimits(max_num_seqs, max_model_len, max_step_tokens),
    )
    choice = choose(
        _plan(max_num_seqs, max_model_len, max_step_tokens), mixed and captured_mixed, frozenset()
    )
    graphs = choice.pruned.graphs
    width = -(-max_model_len // block_size)
    device = ScriptedDevice(behaviour, capacity_of(captured), num_blocks, block_size, width)
    cache = KVCache(num_blocks, block_size, prefix_cache)
    device.draft_tokens = draft_tokens
    drafts = draft_limits(draft_tokens, decode_capacity(graphs))
    scheduler = Scheduler(cache, max_num_seqs, max_step_tokens, drafts=drafts)
    tables = SlotTables(scheduler.max_running, max_model_len, block_size)
    executables = {g.id: ScriptedExecutable(device, g) for g in graphs}
    metrics = EngineMetrics(graphs)
    grammars = SlotGrammars(frozenset(behaviour.eos))
    runner = ModelRunner(device, executables, tables, grammars)
    loop = EngineLoop(StepChain(scheduler, Planner(graphs), runner), metrics)
    length = min(max_model_len, cache.capacity_tokens)
    rank = LocalRank(choice.plan, device, executables)
    switch = LiveSwitch(rank, choice.pruned, loop, choose, lambda rank, graphs: None)
    engine = Engine(
        _model(behaviour, model_id, length),
        {
            "object": "config",
            "graphs": {**choice.graphs, "epoch": 0},
            "ranks": list(choice.ranks),
            "scheduler": {"max_num_seqs": scheduler.max_running},
        },
        Admission(cache, behaviour.vocab_size, length, frozenset(behaviour.eos)),
        scheduler,
        loop,
        metrics,
        max_queue,
        switch if live_switch else None,
    )
    return ScriptedEngine(engine, device, scheduler, cache)


def _model(behaviour: Behaviour, model_id: str, length: int) -> ModelInfo:
    return ModelInfo(
        id=model_id,
        context_length=length,
        vocab_size=behaviour.vocab_size,
        eos_token_ids=frozenset(behaviour.eos),
        core_digest="0" * 64,
        created=1_700_000_000,
    )
