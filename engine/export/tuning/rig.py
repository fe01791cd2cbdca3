"""The bench of an export: programs on the native device, on made-up rows and the real weights."""

from collections.abc import Callable, Iterable, Mapping

import flare_cpu
import numpy as np
from numpy.typing import NDArray

from engine.core.schema import ModelSpec
from engine.device.base import BatchShape
from engine.device.cpu.device import choose_isa
from engine.device.cpu.lower import Lowering, weight_names
from engine.device.cpu.weights import all_bytes, as_bytes
from engine.errors import DeviceError
from engine.export.tuning.classes import CONTEXT
from engine.export.tuning.questions import Batch
from engine.export.tuning.second import second_weights
from engine.ir.program import SYMBOLS, Domain, Program

POOL_BYTES = 256 << 20
"""Cache that a bench takes at most, where the batches need no more."""
PATTERN = 1 << 20
"""Random values that the arena and the cache are filled with, over and over."""


class Rig:
    """Runs programs of one model. weights: storage tensors by name, of packed layouts as u8.

    domains: the largest of them is what the inputs hold. Raises DeviceError without the memory.
    """

    def __init__(
        self,
        model: ModelSpec,
        programs: Iterable[Program],
        weights: Mapping[str, NDArray[np.generic]],
        max_model_len: int,
        threads: int,
    ) -> None:
        self.model = model
        self.weights = all_bytes(weights)
        programs = tuple(programs)
        domains = [program.domain for program in programs]
        most = Domain(*(max(d.bind(name) for d in domains) for name in SYMBOLS))
        longest = min(max_model_len, CONTEXT + most.tokens)
        blocks = -(-longest // model.kv.block_size)
        needed = most.seqs + 2 * blocks
        self._blocks = max(needed, min(4 * needed, POOL_BYTES // model.kv.bytes_per_block))
        arena = max(program.arena_bytes for program in programs)
        try:
            self.context = self._context(most, arena, blocks, threads)
        except (ValueError, RuntimeError, MemoryError) as error:
            raise DeviceError(f"cannot set up the CPU device for tuning: {error}") from error
        random = np.random.default_rng(0)
        self._values = random.standard_normal(PATTERN // 4, np.float32)
        keys = (self._values.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        _fill(self.context.kv_cache, keys.view(np.uint8))
        self.reset()

    def _context(self, most: Domain, arena: int, blocks: int, threads: int) -> flare_cpu.Context:
        kv = self.model.kv
        return flare_cpu.Context(
            flare_cpu.ThreadPool(threads),
            choose_isa("auto"),
            arena,
            most.tokens,
            most.seqs,
            most.logits,
            blocks,
            kv.layers,
            kv.kv_heads,
            kv.head_dim,
            kv.block_size,
            self._blocks,
        )

    def reset(self) -> None:
        """Give every value in the arena its first bits."""
        _fill(self.context.arena, self._values.view(np.uint8))

    def executable(self, program: Program) -> flare_cpu.Executable:
        """Instantiate a program. Raises DeviceError for one that does not fit the bench."""
        names, domain = weight_names(program), program.domain
        for second in second_weights([program]):
            if second.name not in self.weights:
                packed = second.pack(self.weights[second.weight])
                self.weights[second.name] = as_bytes(second.name, packed)
        try:
            return flare_cpu.Executable(
                self.context,
                (domain.tokens, domain.seqs, domain.logits),
                Lowering().lower(program),
                [self.weights[name] for name in names],
            )
        except (ValueError, MemoryError) as error:
            raise DeviceError(f"program {program.name}: {error}") from error

    def runner(self, program: Program, batch: Batch) -> Callable[[], None]:
        """Return a call that replays the program on a batch, which must be in the inputs."""
        executable, shape = self.executable(program), shape_of(program.domain, batch)

        def run() -> None:
            executable.replay(
                shape.tokens,
                shape.seqs,
                shape.generated_tokens,
                shape.generated_seqs,
                shape.logits,
                shape.generated_logits,
            )

        return run

    def fill(self, batch: Batch) -> None:
        """Put a batch's rows into the inputs.

        Cache blocks: one that each generated row writes, then those of the prompt chunk and what
        comes before it, then what comes before generated rows, which nothing writes and
        sequences may share. A row is the same in every batch that has it.
        """
        c, size = self.context, self.model.kv.block_size
        history = batch.context // size
        own = len(c.seq_lens)
        shared = own + c.block_tables.shape[1]
        for i in range(batch.generated):
            before = (i * history + np.arange(history)) % (self._blocks - shared)
            self._sequence(i, i, 1, batch.context, np.append(shared + before, i))
        if batch.prompt:
            table = own + np.arange(-(-(batch.context + batch.prompt) // size))
            self._sequence(batch.generated, batch.generated, batch.prompt, batch.context, table)
        rows = np.arange(batch.rows)
        c.token_ids[: batch.rows] = rows * 7919 % self.model.vocab_size
        count = min(batch.generated, len(c.logit_rows))
        c.logit_rows[:count] = rows[:count]
        if batch.prompt and batch.generated < len(c.logit_rows):
            c.logit_rows[batch.generated] = batch.rows - 1

    def _sequence(
        self, index: int, row: int, count: int, start: int, table: NDArray[np.integer]
    ) -> None:
        c, size = self.context, self.model.kv.block_size
        positions = np.arange(start, start + count)
        c.positions[row : row + count] = positions
        c.slots[row : row + count] = table[positions // size] * size + positions % size
        c.seg_starts[index], c.seg_starts[index + 1] = row, row + count
        c.seq_lens[index] = start + count
        c.block_tables[index, : len(table)] = table


def shape_of(domain: Domain, batch: Batch) -> BatchShape:
    """Return the counts of a replay: every sequence's last row has its logits computed."""
    seqs = batch.generated + (batch.prompt > 0)
    logits = min(domain.logits, seqs)
    return BatchShape(
        batch.rows, seqs, logits, batch.generated, batch.generated, min(logits, batch.generated)
    )


def rows_of(rig: Rig, program: Program, name: str, batch: Batch) -> NDArray[np.float32]:
    """Return the present rows of a value in the arena: a view."""
    buffer = program.buffers[name]
    symbol, width = buffer.shape
    assert isinstance(width, int) and buffer.offset is not None
    shape = shape_of(program.domain, batch)
    rows = shape.logits if symbol == "logits" else shape.tokens
    place = rig.context.arena[buffer.offset : buffer.offset + rows * width * 4]
    return place.view(np.float32).reshape(rows, width)


def _fill(memory: NDArray[np.uint8], pattern: NDArray[np.uint8]) -> None:
    for start in range(0, len(memory), len(pattern)):
        piece = memory[start : start + len(pattern)]
        piece[:] = pattern[: len(piece)]
