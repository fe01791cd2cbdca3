"""Measures how long replays of the captured graphs take: the points of the step-time model."""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import median
from time import perf_counter, time

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from engine.core.schema import Graph, Kind, Limits, Machine, ModelSpec, StepTime
from engine.device.base import BatchShape, SampleBatch
from engine.export.catalog import Capture
from engine.export.progress import ExportProgress
from engine.export.replays import ExportReplays, instantiate_capture
from engine.export.tuning.journal import Journal
from engine.export.tuning.machine import this_machine
from engine.export.tuning.questions import Measurement
from engine.types import SamplingParams

NEAR, DEEP = 64, 2048
"""Keys that decode rows see; a chunk has none before it, or ``DEEP``, where they fit."""
SAMPLES = 6
"""The fewest of which smallest and largest hold the median at 95 % (2 / 2^6 is below 0.05)."""
RECORD = "step_times"
"""Key of the samples in a journal."""
WIDE = 256
"""A graph that takes this many rows more than the next smaller one is measured in between too."""
POOL_BYTES = 256 << 20
"""Cache to measure with: far above a processor's caches; sequences share it where it is short."""


class Point(Struct, frozen=True):
    """A batch to measure: rows, those that decode among them, keys that each last row sees."""

    graph: str
    tokens: int
    generated: int
    context: int

    @property
    def prompt(self) -> int:
        return self.tokens - self.generated

    @property
    def seqs(self) -> int:
        return self.generated + (self.prompt > 0)


def measured_points(graphs: Sequence[Graph], limits: Limits) -> list[Point]:
    """The points of all decode, prefill and mixed graphs.

    A graph is measured at the fewest and the most rows that it is chosen for: from one above the
    capacity of the next smaller graph of its kind.
    """
    points: list[Point] = []
    for kind in (Kind.DECODE, Kind.PREFILL, Kind.MIXED):
        below = 0
        chosen = [graph for graph in graphs if graph.kind is kind and graph.speculative == "off"]
        for graph in sorted(chosen, key=lambda graph: graph.domain.tokens):
            points += _POINTS[kind](graph, below + 1, limits)
            below = graph.domain.tokens
    return list(dict.fromkeys(points))


def _rows(least: int, most: int) -> list[int]:
    middle = [(least + most) // 2] if most - least > WIDE else []
    return sorted({least, *middle, most})


def _decode(graph: Graph, least: int, limits: Limits) -> Iterator[Point]:
    for count in _rows(least, graph.domain.tokens):
        for context in sorted({min(c, limits.max_model_len) for c in (NEAR, DEEP)}):
            yield Point(graph.id, count, count, context)


def _prefill(graph: Graph, least: int, limits: Limits) -> Iterator[Point]:
    for count in _rows(least, graph.domain.tokens):
        if count <= limits.max_model_len:
            for context in sorted({count, min(count + DEEP, limits.max_model_len)}):
                yield Point(graph.id, count, 0, context)


def _mixed(graph: Graph, least: int, limits: Limits) -> Iterator[Point]:
    """Few, some, and as many decode rows as there can be, each with small and large chunks."""
    domain = graph.domain
    most = min(limits.max_num_seqs, domain.seqs - 1, domain.logits - 1, domain.tokens - 1)
    for generated in sorted({1, max(1, most // 4), most} - {0}):
        for count in _rows(max(least, generated + 1), domain.tokens):
            chunk = min(count - generated, limits.max_model_len)
            context = min(max(chunk, 2 * NEAR), limits.max_model_len)
            yield Point(graph.id, generated + chunk, generated, context)


_POINTS: Mapping[Kind, Callable[[Graph, int, Limits], Iterable[Point]]] = {
    Kind.DECODE: _decode,
    Kind.PREFILL: _prefill,
    Kind.MIXED: _mixed,
}


class Bench:
    """Fills a device's inputs with points' batches, replays and samples them."""

    def __init__(self, replays: ExportReplays, model: ModelSpec, blocks: int, slots: int) -> None:
        self._replays = replays
        self._device = replays.device
        self._size = model.kv.block_size
        self._blocks = blocks
        self._vocab = model.vocab_size
        for slot in range(slots):
            greedy = SamplingParams(max_tokens=1, temperature=0.0)
            self._device.sampler.set(slot, greedy, (), (0,), ())

    def seconds(self, point: Point, clock: Callable[[], float] = perf_counter) -> float:
        """Replay a point and draw a token for each sequence; the inputs are filled before."""
        shape = self._fill(point)
        rows = np.arange(point.seqs, dtype=np.int32)
        zeros = np.zeros(point.seqs, np.int32)
        batch = SampleBatch(rows, rows, zeros, zeros.astype(np.uint8), zeros - 1)
        began = clock()
        self._replays.executables[point.graph].replay(shape)
        self._device.sampler.sample(batch)
        return max(clock() - began, 1e-9)

    def _fill(self, point: Point) -> BatchShape:
        inputs, n = self._device.inputs, point.generated
        for i in range(n):
            self._sequence(i, i, 1, point.context)
        if point.prompt:
            self._sequence(n, n, point.prompt, point.context)
        inputs.token_ids[: point.tokens] = np.arange(point.tokens) * 7919 % self._vocab
        inputs.logit_rows[: point.seqs] = [*range(n), point.tokens - 1][: point.seqs]
        return BatchShape(point.tokens, point.seqs, point.seqs, n, n, n)

    def _sequence(self, index: int, row: int, count: int, context: int) -> None:
        """A sequence whose last ``count`` of ``context`` positions are computed, in blocks of its
        own while there are enough."""
        inputs, size = self._device.inputs, self._size
        blocks = -(-context // size)
        table = 1 + (index * blocks + np.arange(blocks)) % (self._blocks - 1)
        positions = np.arange(context - count, context)
        inputs.positions[row : row + count] = positions
        inputs.slots[row : row + count] = table[positions // size] * size + positions % size
        inputs.seg_starts[index], inputs.seg_starts[index + 1] = row, row + count
        inputs.seq_lens[index] = context
        inputs.block_tables[index, :blocks] = table


def measure_step_times(
    capture: Capture,
    model: ModelSpec,
    limits: Limits,
    weights: Mapping[str, NDArray[np.generic]],
    threads: int | None,
    shown: ExportProgress,
    journal: Journal | None = None,
) -> tuple[Machine, tuple[StepTime, ...]]:
    """Time every point ``SAMPLES`` times, in rounds of drawn order, after one round unkept.

    Returns the machine too. A journal that holds the times gives them, else it keeps them. Raises
    DeviceError without the memory.
    """
    points = measured_points(capture.graphs, limits)
    most = max(-(-point.context // model.kv.block_size) for point in points)
    wanted = max(point.seqs * -(-point.context // model.kv.block_size) for point in points)
    blocks = 1 + max(most, min(wanted, POOL_BYTES // model.kv.bytes_per_block))
    seqs = max(point.seqs for point in points)
    replays = instantiate_capture(capture, model, weights, blocks, most, seqs, threads)
    bench = Bench(replays, model, blocks, seqs)
    shown.step("Timing steps", (1 + SAMPLES) * len(points))
    samples = _recorded(journal, points)
    if samples is None:
        samples = time_points(points, bench.seconds, shown.advance)
        if journal is not None:
            named = {_name(point): found for point, found in samples.items()}
            journal.add(Measurement(RECORD, named, None, {}))
    here = this_machine(replays.threads, replays.isa, int(time()))
    return here, tuple(step_time(point, samples[point], here.id) for point in points)


def _recorded(journal: Journal | None, points: Sequence[Point]) -> dict[Point, list[float]] | None:
    """The samples of all points, from a journal that has exactly them."""
    found = None if journal is None else journal.found.get(RECORD)
    if found is None or found.samples.keys() != {_name(point) for point in points}:
        return None
    return {point: list(found.samples[_name(point)]) for point in points}


def _name(point: Point) -> str:
    return f"{point.graph} {point.tokens} {point.generated} {point.context}"


def time_points(
    points: Sequence[Point], seconds: Callable[[Point], float], advance: Callable[[], None]
) -> dict[Point, list[float]]:
    """Return each point's samples. Whatever slows the machine for a while meets all alike."""
    samples: dict[Point, list[float]] = {point: [] for point in points}
    order, shuffle = list(points), random.Random(0).shuffle
    for number in range(1 + SAMPLES):
        shuffle(order)
        for point in order:
            found = seconds(point)
            if number:
                samples[point].append(found)
            advance()
    return samples


def step_time(point: Point, samples: Sequence[float], machine: str) -> StepTime:
    """Return the record of a point's samples."""
    return StepTime(
        point.graph,
        point.tokens,
        point.generated,
        point.context,
        median(samples),
        min(samples),
        max(samples),
        len(samples),
        machine,
    )
