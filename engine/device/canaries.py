"""Canaries: one full launch of each graph on inputs that the catalog and a seed decide.

docs/core-format.md, "Canaries", gives the rule. The core holds the digest of what each launch
computed; here is what both the exporter, which records it, and the check replay.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from engine.core.schema import Canary, Graph, Kind, Limits, ModelSpec
from engine.device.base import BatchShape, Device, Executable

Bits = NDArray[np.uint32]
SEED = 1
"""Seed of the canaries that an export records."""
LONGEST_BEFORE = 16
"""Rows of the prompts before rows that decode, at most."""
_KINDS = (Kind.DECODE, Kind.PREFILL, Kind.MIXED)


class Part(Struct, frozen=True):
    """Consecutive rows of one sequence, in a cache block of its own; the last row's logits count.

    generated: one row, of the generated role, after a prompt that is in the block already.
    """

    tokens: tuple[int, ...]
    start: int
    block: int
    generated: bool = False


class Rule(Struct, frozen=True):
    """What decides the inputs. length: rows of a sequence at most (S in the document); decoding:
    sequences that decode in any canary (D)."""

    vocab: int
    length: int
    decoding: int
    seed: int

    def batch(self, graph: Graph) -> list[Part]:
        """The parts of a graph's launch: decode rows, then prompts of different lengths."""
        domain = graph.domain
        rows = _decoding(graph)
        parts = [self.decode(i) for i in range(rows)]
        left, longest = domain.tokens - rows, longest_prompt(domain.tokens, self.length)
        for number in range(min(domain.seqs, domain.logits) - rows):
            if left == 0 or number == prompts_of(domain.tokens, self.length):
                break
            count = min(left, max(1, longest - number))
            parts.append(self.prompt(self.decoding + number, count))
            left -= count
        return parts

    def prompt(self, sequence: int, count: int) -> Part:
        """The first rows of a sequence's prompt."""
        start = 7919 * (sequence + 1) + self.seed
        tokens = ((start + 104_729 * i) % self.vocab for i in range(count))
        return Part(tuple(tokens), 0, sequence + 1)

    def before(self, sequence: int) -> Part:
        """The prompt that a sequence that decodes has computed."""
        longest = max(1, min(LONGEST_BEFORE, self.length - 1))
        return self.prompt(sequence, 1 + sequence % longest)

    def decode(self, sequence: int) -> Part:
        """The generated row behind ``before``."""
        token = (31 * sequence + 5 + self.seed) % self.vocab
        return Part((token,), len(self.before(sequence).tokens), sequence + 1, generated=True)


def canary_graphs(graphs: Iterable[Graph]) -> list[Graph]:
    """The graphs that have a canary, smallest first."""
    found = [g for g in graphs if g.kind in _KINDS and g.speculative == "off"]
    return sorted(found, key=lambda graph: graph.domain.tokens)


def rule_of(
    model: ModelSpec, limits: Limits, graphs: Sequence[Graph], seed: int = SEED
) -> tuple[Rule, int]:
    """Return the rule for ``canary_graphs`` of a catalog, and the cache blocks that it needs, the
    null block not counted."""
    length = min(model.kv.block_size, limits.max_model_len)
    domains = [graph.domain for graph in graphs if graph.kind is not Kind.PREFILL]
    decoding = max(min(domain.tokens, domain.seqs, domain.logits) for domain in domains)
    prompts = max(prompts_of(graph.domain.tokens, length) for graph in graphs)
    return Rule(model.vocab_size, length, decoding, seed), decoding + prompts


def _decoding(graph: Graph) -> int:
    """Sequences that decode in a graph's canary: all, half, or none."""
    domain = graph.domain
    most = min(domain.tokens, domain.seqs, domain.logits)
    return {Kind.DECODE: most, Kind.MIXED: most // 2}.get(graph.kind, 0)


def prompts_of(tokens: int, length: int) -> int:
    """The most prompts in a canary: enough to fill ``tokens``, though each is shorter."""
    return 2 * -(-tokens // longest_prompt(tokens, length))


def longest_prompt(tokens: int, length: int) -> int:
    """Rows of a canary's first prompt: one block, but never all of ``tokens`` where it can."""
    return max(1, min(length, tokens // 2))


class CanaryReplays:
    """Replays of canaries on a device whose cache has blocks for every sequence of the rule.

    graphs: as ``canary_graphs`` gives them; executables by their ids.
    """

    def __init__(
        self,
        rule: Rule,
        graphs: Sequence[Graph],
        device: Device,
        executables: Mapping[str, Executable],
        block_size: int,
    ) -> None:
        self._rule = rule
        self._graphs = graphs
        self._device = device
        self._executables = executables
        self._size = block_size
        self._alone: dict[Part, Bits] = {}

    def record(self) -> Iterator[Canary]:
        """Replay every graph once and yield its canary; prompts that decode rows need are computed
        together, as full as the largest prefill graph allows."""
        self._compute_prompts()
        for graph in self._graphs:
            yield canary_of(graph, self._rule.seed, self.full(graph))

    def full(self, graph: Graph) -> Bits:
        """Replay a graph's canary; its decode rows' prompts are in the cache. Logits' bits."""
        return self._replay(graph, self._rule.batch(graph))

    def both(self, graph: Graph) -> tuple[Bits, Bits]:
        """Bits of the canary's rows: together in the graph, and each sequence by itself."""
        parts = self._rule.batch(graph)
        for sequence in range(_decoding(graph)):
            self._by_itself(self._rule.before(sequence))
        together = self._replay(graph, parts)
        return together, np.stack([self._by_itself(part) for part in parts])

    def _compute_prompts(self) -> None:
        graph = [graph for graph in self._graphs if graph.kind is Kind.PREFILL][-1]
        most = min(graph.domain.seqs, graph.domain.logits)
        batch: list[Part] = []
        for sequence in range(max(map(_decoding, self._graphs))):
            part = self._rule.before(sequence)
            for piece in _pieces(part, graph.domain.tokens):
                rows = sum(len(other.tokens) for other in batch) + len(piece.tokens)
                if rows > graph.domain.tokens or len(batch) == most or piece.start:
                    self._replay(graph, batch)
                    batch = []
                batch.append(piece)
        if batch:
            self._replay(graph, batch)

    def _by_itself(self, part: Part) -> Bits:
        """Logits of the part's last row: launches of their own, on the smallest separate graph."""
        if part not in self._alone:
            kind = Kind.DECODE if part.generated else Kind.PREFILL
            graph = next(graph for graph in self._graphs if graph.kind is kind)
            for piece in _pieces(part, graph.domain.tokens):
                [self._alone[part]] = self._replay(graph, [piece])
        return self._alone[part]

    def _replay(self, graph: Graph, parts: Sequence[Part]) -> Bits:
        """Replay a batch, generated rows first; return a copy of one logits row per part."""
        row, count = self._fill(parts), len(parts)
        generated = sum(part.generated for part in parts)
        shape = BatchShape(row, count, count, generated, generated, generated)
        self._executables[graph.id].replay(shape)
        logits = self._device.logits[:count, : self._rule.vocab]
        return np.ascontiguousarray(logits, np.float32).view(np.uint32).copy()

    def _fill(self, parts: Sequence[Part]) -> int:
        """Fill the device's inputs; return the number of rows."""
        inputs, row = self._device.inputs, 0
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


def _pieces(part: Part, most: int) -> Iterator[Part]:
    """Cut a part into launches of at most ``most`` rows."""
    for done in range(0, len(part.tokens), most):
        tokens = part.tokens[done : done + most]
        yield Part(tokens, part.start + done, part.block, part.generated)


def canary_of(graph: Graph, seed: int, bits: Bits) -> Canary:
    """Return the stored form of a canary's rows [rows, vocabulary]."""
    rows = bits.astype("<u4", copy=False)
    largest = bits.view(np.float32).argmax(axis=1)
    digest = hashlib.sha256(rows.tobytes()).hexdigest()
    return Canary(graph.id, seed, len(bits), digest, tuple(map(int, largest)))
