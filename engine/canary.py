"""Canaries: every graph replayed on a full batch, each sequence compared in bits with it alone."""

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from engine.config import EngineConfig
from engine.core.reader import Core
from engine.core.schema import Graph, Kind
from engine.device.base import BatchShape
from engine.errors import SelectionError
from engine.factory import LoadPlan, plan_load
from engine.ranks.devices import open_device
from engine.ranks.local import LocalRank, OpenDevice, device_spec, instantiate

Bits = NDArray[np.uint32]
SERVED = (Kind.DECODE, Kind.PREFILL, Kind.MIXED)
"""Kinds that this engine serves from."""


class Canary(Struct, frozen=True):
    """A graph's result. wrong: sequences whose logits differ from those of each alone."""

    graph: str
    sequences: int
    wrong: int


class Part(Struct, frozen=True):
    """Consecutive rows of one sequence, in a cache block of its own; the last row's logits count.

    generated: one row, of the generated role, after a prompt that is in the block already.
    """

    tokens: tuple[int, ...]
    start: int
    block: int
    generated: bool = False


class Canaries:
    """Replays on one rank. Sequence ``i`` lives in block ``i + 1``: first those that decode, then
    those whose prompts are computed."""

    def __init__(self, rank: LocalRank, graphs: Sequence[Graph], core: Core) -> None:
        model = core.manifest.model
        self._rank = rank
        self._graphs = sorted(graphs, key=lambda graph: graph.domain.tokens)
        self._vocab = model.vocab_size
        self._size = model.kv.block_size
        self._length = min(self._size, rank.plan.max_model_len)
        self._decoding = most_decoding(graphs)
        self._alone: dict[Part, Bits] = {}

    def run(self) -> Iterator[Canary]:
        """Replay every graph, smallest first."""
        for graph in self._graphs:
            parts = self._batch(graph)
            found = self._replay(graph, parts)
            wrong = sum(
                not np.array_equal(row, self._by_itself(part))
                for row, part in zip(found, parts, strict=True)
            )
            yield Canary(graph.id, len(parts), wrong)

    def _batch(self, graph: Graph) -> list[Part]:
        """Fill the graph: decode rows, prompts of different lengths, or half of each."""
        domain = graph.domain
        if graph.kind is Kind.DECODE:
            return [self._decode(i) for i in range(min(domain.tokens, domain.seqs, domain.logits))]
        mixed = graph.kind is Kind.MIXED
        rows = min(domain.tokens, domain.seqs, domain.logits) // 2 if mixed else 0
        parts = [self._decode(i) for i in range(rows)]
        left = domain.tokens - rows
        for number in range(min(domain.seqs, domain.logits) - rows):
            if left == 0 or number == prompts_of(domain.tokens, self._length):
                break
            count = min(left, max(1, longest_prompt(domain.tokens, self._length) - number))
            parts.append(self._prompt(self._decoding + number, count))
            left -= count
        return parts

    def _prompt(self, sequence: int, count: int) -> Part:
        tokens = ((7919 * (sequence + 1) + 104_729 * i) % self._vocab for i in range(count))
        return Part(tuple(tokens), 0, sequence + 1)

    def _decode(self, sequence: int) -> Part:
        """The row behind a short prompt, which is computed on the way."""
        before = self._prompt(sequence, 1 + sequence % max(1, self._length - 1))
        self._by_itself(before)
        token = (31 * sequence + 5) % self._vocab
        return Part((token,), len(before.tokens), sequence + 1, generated=True)

    def _by_itself(self, part: Part) -> Bits:
        """Logits of the part's last row: launches of their own, on the smallest separate graph."""
        if part not in self._alone:
            kind = Kind.DECODE if part.generated else Kind.PREFILL
            graph = next(graph for graph in self._graphs if graph.kind is kind)
            most = graph.domain.tokens
            for done in range(0, len(part.tokens), most):
                piece = Part(
                    part.tokens[done : done + most], part.start + done, part.block, part.generated
                )
                [self._alone[part]] = self._replay(graph, [piece])
        return self._alone[part]

    def _replay(self, graph: Graph, parts: Sequence[Part]) -> Bits:
        """Replay a batch, generated rows first; return a copy of one logits row per part."""
        row, count = self._fill(parts), len(parts)
        generated = sum(part.generated for part in parts)
        shape = BatchShape(row, count, count, generated, generated, generated)
        self._rank.executables[graph.id].replay(shape)
        logits = self._rank.device.logits[:count, : self._vocab]
        return np.ascontiguousarray(logits, np.float32).view(np.uint32).copy()

    def _fill(self, parts: Sequence[Part]) -> int:
        """Fill the device's inputs; return the number of rows."""
        inputs, row = self._rank.device.inputs, 0
        for i, part in enumerate(parts):
            count = len(part.tokens)
            rows = slice(row, row + count)
            positions = np.arange(part.start, part.start + count)
            inputs.token_ids[rows] = part.tokens
            inputs.positions[rows] = positions
            inputs.slots[rows] = part.block * self._size + positions
            inputs.seg_starts[i] = row
            inputs.seq_lens[i] = part.start + count
            inputs.block_tables[i, 0] = part.block
            row += count
            inputs.logit_rows[i] = row - 1
        inputs.seg_starts[len(parts)] = row
        return row


def most_decoding(graphs: Sequence[Graph]) -> int:
    """Sequences that decode in any graph's canary."""
    domains = [graph.domain for graph in graphs if graph.kind is not Kind.PREFILL]
    return max(min(domain.tokens, domain.seqs, domain.logits) for domain in domains)


def prompts_of(tokens: int, length: int) -> int:
    """The most prompts in a canary: enough to fill ``tokens``, though each is shorter."""
    return 2 * -(-tokens // longest_prompt(tokens, length))


def longest_prompt(tokens: int, length: int) -> int:
    """Rows of a canary's first prompt: one block, but never all of ``tokens`` where it can."""
    return max(1, min(length, tokens // 2))


def replay_canaries(core: Core, open_with: OpenDevice | None = None) -> Iterator[Canary]:
    """Load every graph that this machine can serve, and replay each.

    Raises DeviceError when the core's device is not here.
    """
    plan = _plan(core)
    graphs = [graph for graph in plan.pruned.graphs if graph.kind in SERVED]
    spec = device_spec(plan.ranks[0], core, plan.pruned, plan.room)
    device = open_with(spec) if open_with else open_device(spec, None, "auto")
    return Canaries(instantiate(plan.ranks[0], device, plan.pruned), graphs, core).run()


def _plan(core: Core) -> LoadPlan:
    """Both families where they were captured, and a cache of one block for each sequence."""
    manifest, kv = core.manifest, core.manifest.model.kv
    graphs = [graph for graph in manifest.catalog.graphs if graph.kind in SERVED]
    length = min(kv.block_size, manifest.limits.max_model_len)
    prompts = max(prompts_of(graph.domain.tokens, length) for graph in graphs)
    blocks = most_decoding(graphs) + prompts
    config = EngineConfig(
        core=core.path, max_model_len=length, kv_cache_bytes=blocks * kv.bytes_per_block
    )
    try:
        return plan_load(replace(config, mixed_prefill=True), manifest)
    except SelectionError:
        return plan_load(config, manifest)
