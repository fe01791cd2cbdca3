"""The CPU device of one rank: native memory, executables and sampler."""

from collections.abc import Collection, Mapping, Sequence

import flare_cpu
import numpy as np
from numpy.typing import NDArray

from engine.config import Isa
from engine.core.schema import Graph, ModelSpec
from engine.device.base import BatchShape, InputBuffers
from engine.device.cpu.lower import Lowering, weight_names
from engine.device.cpu.sampler import CpuSampler
from engine.device.cpu.weights import all_bytes
from engine.errors import DeviceError
from engine.ir.program import Domain, Program, Space

PREFERENCE = ("amx", "avx512", "avx2", "neon")
"""Instruction-set paths, best first; the portable one is always there."""


class CpuDevice:
    """Implements ``engine.device.base.Device`` on the native extension.

    capacity: the largest batch of the graphs that may be instantiated. weights: storage tensors
    by name (F32 for plain ones, U8 for packed ones), kept, not copied where 64-byte aligned.
    workspace_bytes: the largest arena of these graphs. num_blocks: blocks of the KV pool;
    max_blocks: of one sequence. isa "auto" takes the best path that the processor has.

    Raises DeviceError when the processor lacks the path, a size is out of range or memory is.
    """

    def __init__(
        self,
        model: ModelSpec,
        capacity: Domain,
        weights: Mapping[str, NDArray[np.generic]],
        *,
        workspace_bytes: int,
        num_blocks: int,
        max_blocks: int,
        sampler_slots: int,
        threads: int,
        isa: Isa = "auto",
    ) -> None:
        self._model = model
        self._weights = all_bytes(weights)
        self._num_blocks = num_blocks
        self._logits = np.empty((0, model.logits_width), np.float32)
        try:
            pool = flare_cpu.ThreadPool(threads)
            self._context = flare_cpu.Context(
                pool,
                choose_isa(isa),
                workspace_bytes,
                capacity.tokens,
                capacity.seqs,
                capacity.logits,
                max_blocks,
                model.kv.layers,
                model.kv.kv_heads,
                model.kv.head_dim,
                model.kv.block_size,
                num_blocks,
            )
            self._sampler = CpuSampler(
                pool,
                self._context.isa,
                model.vocab_size,
                model.logits_width,
                sampler_slots,
                lambda: self._logits,
            )
        except (ValueError, RuntimeError) as error:
            raise DeviceError(f"cannot set up the CPU device: {error}") from error
        except MemoryError as error:
            wanted = model.kv.bytes_per_block * num_blocks
            raise DeviceError(
                f"no memory for {wanted} bytes of cache and {workspace_bytes} of workspace",
                "Lower --kv-cache-memory, or --max-num-seqs.",
            ) from error
        self._inputs = _inputs(self._context)
        self._lowering = Lowering()

    @property
    def isa(self) -> str:
        """The instruction-set path that all kernels take."""
        return self._context.isa

    @property
    def inputs(self) -> InputBuffers:
        return self._inputs

    @property
    def sampler(self) -> CpuSampler:
        return self._sampler

    @property
    def logits(self) -> NDArray[np.float32]:
        """Logits rows of the last replay: [rows, logits_width], a view into the arena."""
        return self._logits

    def instantiate(self, graph: Graph, program: Program) -> "CpuExecutable":
        """Return an executable of the program.

        Raises DeviceError, naming the graph, for kernels that this device does not have, missing
        weights, and launches that do not fit the device's sizes.
        """
        names = weight_names(program)
        missing = [name for name in names if name not in self._weights]
        if missing:
            raise DeviceError(f"graph {graph.id}: no storage tensor for {', '.join(missing)}")
        domain = program.domain
        try:
            native = flare_cpu.Executable(
                self._context,
                (domain.tokens, domain.seqs, domain.logits),
                self._lowering.lower(program),
                [self._weights[name] for name in names],
            )
        except (ValueError, MemoryError) as error:
            raise DeviceError(f"graph {graph.id}: {error}") from error
        return CpuExecutable(self, native, self._output(program))

    def hold(self, weights: Mapping[str, NDArray[np.generic]]) -> None:
        """Take these storage tensors in, beside those that are held."""
        self._weights.update(all_bytes(weights))

    def keep(self, names: Collection[str]) -> None:
        """Let go of the storage tensors not named."""
        self._weights = {name: self._weights[name] for name in self._weights if name in names}

    def show(self, logits: NDArray[np.float32]) -> None:
        """Make these the rows that the sampler reads."""
        self._logits = logits

    def scrub(self, blocks: Sequence[int]) -> None:
        """Zero these cache blocks in all layers (their content was not finite)."""
        kv = self._model.kv
        cache = self._context.kv_cache.reshape(kv.layers, self._num_blocks, kv.block_bytes)
        for block in blocks:
            cache[:, block] = 0

    def _output(self, program: Program) -> NDArray[np.float32]:
        """The program's logits [capacity, logits_width] as they lie in the arena."""
        width = self._model.logits_width
        outputs = [b for b in program.buffers.values() if b.space is Space.OUTPUT]
        if [b.shape for b in outputs] != [("logits", width)]:
            raise DeviceError(
                f"program {program.name} must have one output of shape (logits, {width})"
            )
        start = outputs[0].offset or 0
        size = program.domain.logits * width * 4
        rows = self._context.arena[start : start + size].view(np.float32)
        return rows.reshape(program.domain.logits, width)


class CpuExecutable:
    """A program instantiated on a ``CpuDevice``."""

    def __init__(
        self,
        device: CpuDevice,
        native: flare_cpu.Executable,
        output: NDArray[np.float32],
    ) -> None:
        self._device = device
        self._native = native
        self._output = output

    def replay(self, shape: BatchShape) -> None:
        """Run on the rows in the device's input buffers. Releases the GIL; blocks until done.

        Raises ValueError, before anything runs, when the shape exceeds the program's domain or
        the inputs are out of range or contradict it.
        """
        self._native.replay(
            shape.tokens,
            shape.seqs,
            shape.generated_tokens,
            shape.generated_seqs,
            shape.logits,
            shape.generated_logits,
        )
        self._device.show(self._output[: shape.logits])


def choose_isa(isa: Isa) -> str:
    """Return the instruction-set path to use: ``isa`` itself, or the best for "auto"."""
    if isa != "auto":
        return isa
    found = flare_cpu.features()
    return next((name for name in PREFERENCE if found[name]), "portable")


def _inputs(context: flare_cpu.Context) -> InputBuffers:
    return InputBuffers(
        token_ids=context.token_ids,
        positions=context.positions,
        slots=context.slots,
        seg_starts=context.seg_starts,
        seq_lens=context.seq_lens,
        block_tables=context.block_tables,
        logit_rows=context.logit_rows,
    )
