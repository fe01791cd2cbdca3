"""The frozen engine configuration that the app's settings resolve to."""

from pathlib import Path
from typing import Literal

from msgspec import Struct

from engine.types import Speculative

Isa = Literal["auto", "portable", "avx2", "avx512", "amx", "neon"]
"""Instruction-set paths of the CPU kernels; "auto" takes the best that the processor has."""


class EngineConfig(Struct, frozen=True):
    """All that the factory needs. None means: what the core says, or sized at load.

    mixed_prefill: the tri-state selection request. kv_cache_bytes: bytes for the KV pool.
    cpu_isa: the instruction-set path to take. stall_seconds: how long a step with prompt rows
    should last at most while other sequences decode; 0: any time. live_switch: the selection can
    be changed while serving; inputs and workspace then have room for either family.
    """

    core: Path
    mixed_prefill: bool | None = None
    device: Literal["auto", "cpu", "cuda"] = "auto"
    tensor_parallel_size: int | None = None
    max_num_seqs: int | None = None
    max_model_len: int | None = None
    max_step_tokens: int | None = None
    kv_cache_bytes: int | None = None
    threads: int | None = None
    prefix_cache: bool = True
    speculative: Speculative = "off"
    draft_tokens: int = 0
    max_queue: int = 1024
    cpu_isa: Isa = "auto"
    stall_seconds: float = 0.0
    live_switch: bool = False
