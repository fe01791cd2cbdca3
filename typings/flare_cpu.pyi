"""The native CPU extension: captured-program replay, kernels, sampler. No framework inside.

Wrong sizes and values raise ValueError, wrong types and array layouts TypeError.
"""

import numpy as np
from numpy.typing import NDArray

def features() -> dict[str, bool]:
    """Instruction sets that this processor (and operating system) gives: avx2, avx512, amx, neon.

    avx2 = AVX2, FMA and F16C; avx512 = F, BW, VL, DQ, VNNI and BF16; amx = avx512 and VBMI,
    AMX-TILE, AMX-INT8, AMX-BF16 with permission granted; neon = ASIMD with dot products.
    """

class ThreadPool:
    """Persistent unpinned threads; the caller is thread 0. Spins, then parks when idle."""

    def __init__(self, threads: int) -> None: ...
    @property
    def threads(self) -> int: ...

class Context:
    """All that the executables of one rank share: pool, ISA path, arena, inputs, KV state.

    max_tokens, max_seqs (segments) and max_logits are the largest of all programs; max_blocks is
    per sequence. block_size must be 64. Memory is aligned, zeroed, huge-page advised, and takes
    space only once it is touched. Arrays are views that keep the context alive.
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
    @property
    def scratch_bytes(self) -> int:
        """Bytes of working memory of the executables made so far."""
    @property
    def token_ids(self) -> NDArray[np.int32]: ...
    @property
    def positions(self) -> NDArray[np.int32]: ...
    @property
    def slots(self) -> NDArray[np.int32]: ...
    @property
    def seg_starts(self) -> NDArray[np.int32]:
        """max_seqs + 1 entries."""
    @property
    def seq_lens(self) -> NDArray[np.int32]: ...
    @property
    def block_tables(self) -> NDArray[np.int32]:
        """[max_seqs, max_blocks]."""
    @property
    def logit_rows(self) -> NDArray[np.int32]: ...
    @property
    def arena(self) -> NDArray[np.uint8]: ...
    @property
    def kv_cache(self) -> NDArray[np.uint8]:
        """Layers x blocks x KVLayout.block_bytes, flat."""

_Operand = tuple[str, int | str]
_Launch = tuple[str, list[_Operand], list[_Operand], dict[str, int | float | str]]

class Executable:
    """An instantiated program.

    domain: capacity (tokens, seqs, logits) of the program. launches: (op, inputs, outputs,
    attributes) per launch, where each operand is ("arena", byte offset) | ("weight", index into
    weights) | ("input", name) | ("state", name), and attributes are those of engine/ir/ops.py
    (flags as 0 or 1) plus "rows" ("tokens" or "logits") for rms_norm and linear, and parameters
    of the launch's kernel (engine/kernels/parameters.py). weights: byte
    arrays that the executable keeps alive; packed ones 64-byte aligned.
    """

    def __init__(
        self,
        context: Context,
        domain: tuple[int, int, int],
        launches: list[_Launch],
        weights: list[NDArray[np.uint8]],
    ) -> None: ...
    def replay(
        self,
        tokens: int,
        seqs: int,
        generated_tokens: int,
        generated_seqs: int,
        logits: int,
        generated_logits: int,
    ) -> None:
        """Run the program on the rows that the context's inputs hold. Releases the GIL.

        Raises ValueError, before anything runs, when counts exceed the domain or inputs are out
        of range or contradict each other.
        """

class Sampler:
    """Per-slot sampling state and the native sampler (order of processing: flare/sampler.h).

    Every array is preallocated by the caller; outputs must be C-contiguous. ``sample`` and
    ``score`` release the GIL.
    """

    def __init__(
        self, pool: ThreadPool, isa: str, vocab_size: int, logits_width: int, slots: int
    ) -> None: ...
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
        """Start a slot: parameters and history (output_ids non-empty after a preemption).

        seed: 0 to 2**64 - 1. History is kept only where a penalty is set. stop_ids that the
        vocabulary does not hold are dropped: they are never drawn.
        """
    def clear(self, slot: int) -> None: ...
    def rewind(self, slot: int, count: int) -> None:
        """Take back the last ``count`` drawn tokens of a slot's history (rejected drafts)."""
    def sample(
        self,
        logits: NDArray[np.float32],
        rows: NDArray[np.int32],
        slots: NDArray[np.int32],
        positions: NDArray[np.int32],
        forbid_stop: NDArray[np.uint8],
        top_n: NDArray[np.int32],
        tokens: NDArray[np.int32],
        logprobs: NDArray[np.float32],
        top_ids: NDArray[np.int32],
        top_logprobs: NDArray[np.float32],
        masks: NDArray[np.uint32] | None = None,
        mask_rows: NDArray[np.int32] | None = None,
    ) -> None:
        """Draw one token per entry of ``rows`` (rows of logits [n, logits_width]).

        positions: absolute position of the token being drawn; with the seed it fixes the draw.
        forbid_stop: 1 forbids the slot's stop ids (min_tokens). top_n: -1 for no log
        probabilities, else 0..20 alternatives. masks: rows of ceil(vocab_size / 32) words, a bit
        per id that may be drawn, lowest bit first; mask_rows: each entry's row of them, -1 for
        none. Outputs: tokens (-1: the row's logits are not
        finite, or no id is left), logprobs (NaN where not asked), top_ids [n, 20] (-1 behind
        top_n), top_logprobs [n, 20]. Entries of one slot must be adjacent; they are drawn in
        order, each seeing the tokens before it. Greedy ties: lowest id.
        """
    def score(
        self,
        logits: NDArray[np.float32],
        rows: NDArray[np.int32],
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
    bias: NDArray[np.float32] | None = None,
    residual: NDArray[np.float32] | None = None,
    activation: str = "none",
    generated_rows: int | None = None,
    prompt_numerics: str | None = None,
    in_place: bool = False,
    pieces: int = 0,
    run: int = 0,
    own: int = 0,
    prompt_weight: NDArray[np.uint8] | None = None,
) -> NDArray[np.float32]:
    """One linear through the context's ISA path (for kernel tests).

    Rows [0, generated_rows) (default: all) use ``numerics``, the others ``prompt_numerics``
    (default: the same). in_place: the residual is read from the output array.
    pieces, run and own: parameters of its kernel (engine/kernels/parameters.py), 0 for none.
    prompt_weight: the weight as bf16p16, which the other rows read then.
    """
