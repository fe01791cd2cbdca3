"""The native CPU extension: captured-program replay, kernels, sampler. No framework inside."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

def features() -> dict[str, bool]:
    """Instruction sets that this processor (and operating system) gives: avx2, avx512, amx, neon.

    avx512 = F, BW, VL, DQ, VNNI and BF16; amx = avx512 and AMX-TILE, AMX-INT8, AMX-BF16 with permission granted.
    """

class ThreadPool:
    """Persistent threads; the caller is thread 0. Spins, then parks when idle."""

    def __init__(self, threads: int) -> None: ...
    @property
    def threads(self) -> int: ...

class Context:
    """All that the executables of one rank share: pool, ISA path, arena, inputs, KV state.

    sizes: max_tokens, max_seqs (segments), max_logits, max_blocks (per sequence), logits_width.
    kv: layers, kv_heads, head_dim, block_size, num_blocks. Memory is 64-byte aligned, zeroed,
    and huge-page advised.
    """

    def __init__(
        self,
        pool: ThreadPool,
        isa: str,
        arena_bytes: int,
        max_tokens: int,
        max_seqs: int,
        max_logits: int,
        max_blocks: int,
        layers: int,
        kv_heads: int,
        head_dim: int,
        block_size: int,
        num_blocks: int,
    ) -> None: ...
    @property
    def isa(self) -> str: ...
    token_ids: NDArray[np.int32]
    positions: NDArray[np.int32]
    slots: NDArray[np.int32]
    seg_starts: NDArray[np.int32]  # max_seqs + 1
    seq_lens: NDArray[np.int32]
    block_tables: NDArray[np.int32]  # [max_seqs, max_blocks]
    logit_rows: NDArray[np.int32]
    arena: NDArray[np.uint8]
    kv_cache: NDArray[np.uint8]

class Executable:
    """An instantiated program.

    launches: (op, inputs, outputs, ints, floats) per launch, where each operand is
    ("arena", byte offset) | ("weight", index into weights) | ("input", name) | ("state", ""), and
    ints / floats are the op's attributes by name (strings are passed in ints as enum codes by the
    Python wrapper). weights: read-only uint8 views that the executable keeps alive.
    """

    def __init__(
        self,
        context: Context,
        launches: list[tuple[str, list[tuple[str, Any]], list[tuple[str, Any]], dict[str, int], dict[str, float]]],
        weights: list[NDArray[np.uint8]],
    ) -> None: ...
    def replay(self, tokens: int, seqs: int, generated_tokens: int, generated_seqs: int, logits: int, generated_logits: int) -> None:
        """Run the program on the rows that the context's inputs hold. Releases the GIL.

        Raises ValueError when the counts exceed the capacities of the context.
        """

class Sampler:
    """Per-slot sampling state and the native sampler.

    Every array is preallocated by the caller; ``sample`` allocates nothing and releases the GIL.
    """

    def __init__(self, pool: ThreadPool, vocab_size: int, logits_width: int, slots: int) -> None: ...
    def set(
        self,
        slot: int,
        temperature: float,
        top_k: int,
        top_p: float,
        min_p: float,
        presence_penalty: float,
        frequency_penalty: float,
        repetition_penalty: float,
        seed: int,
        bias_ids: NDArray[np.int32],
        bias_values: NDArray[np.float32],
        stop_ids: NDArray[np.int32],
        prompt_ids: NDArray[np.int32],
        output_ids: NDArray[np.int32],
    ) -> None:
        """Start a slot: parameters and history (output_ids non-empty after a preemption)."""
    def clear(self, slot: int) -> None: ...
    def sample(
        self,
        logits: NDArray[np.float32],  # [rows, logits_width]
        rows: int,
        slots: NDArray[np.int32],
        positions: NDArray[np.int32],  # position of the token being drawn, for the seed
        forbid_stop: NDArray[np.uint8],  # 1: the slot's stop ids may not be drawn (min_tokens)
        top_n: NDArray[np.int32],  # -1: no logprobs; 0..20 alternatives
        tokens: NDArray[np.int32],  # out
        logprobs: NDArray[np.float32],  # out, of the drawn token
        top_ids: NDArray[np.int32],  # out [rows, 20]
        top_logprobs: NDArray[np.float32],  # out [rows, 20]
    ) -> None:
        """Draw one token per row and add it to the slot's history. Greedy ties: lowest id."""
    def score(
        self,
        logits: NDArray[np.float32],
        rows: int,
        targets: NDArray[np.int32],
        top_n: NDArray[np.int32],
        logprobs: NDArray[np.float32],
        top_ids: NDArray[np.int32],
        top_logprobs: NDArray[np.float32],
    ) -> None:
        """Log probabilities of given tokens (prompt logprobs), raw logits, no state."""

def test_linear(
    context: Context,
    x: NDArray[np.float32],
    weight: NDArray[np.uint8],
    layout: str,
    n: int,
    k: int,
    numerics: str,
) -> NDArray[np.float32]:
    """One linear, rows of one class, through the context's ISA path (for kernel tests)."""
