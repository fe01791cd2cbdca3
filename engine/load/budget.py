"""The memory budget of one rank: weights, workspace, and the KV blocks that fit beside them."""

from msgspec import Struct

from engine.core.schema import KVLayout
from engine.errors import DeviceError
from engine.load.select import LoadLimits

SHARE = 0.6
"""Part of the memory left after weights and workspace that the KV pool may take by itself."""
FILL = 4
"""By itself the pool holds max_num_seqs sequences of 1 / FILL of the longest: few are that long,
and what the prefix cache retains fills the pool in time, however large it is."""


class Budget(Struct, frozen=True):
    """The KV pool, and the run's longest sequence after its size is known.

    max_model_len: tokens of the longest sequence that is served; lower than asked when the pool
    is smaller than that, which ``message`` then says.
    """

    num_blocks: int
    kv_bytes: int
    max_model_len: int
    message: str | None = None


def plan_budget(
    kv: KVLayout,
    limits: LoadLimits,
    weights_bytes: int,
    workspace_bytes: int,
    available_bytes: int,
    kv_cache_bytes: int | None = None,
) -> Budget:
    """Size the KV pool.

    weights_bytes: tensors that the run keeps in memory, mapped ones too (page cache counts as
    available, but must stay). available_bytes: free now, before weights and workspace.
    kv_cache_bytes: size given by the user, else a share of what is left, at most what
    max_num_seqs sequences of a quarter of max_model_len take, or one of the whole length. Raises
    DeviceError, naming need and have, when not even one block fits.
    """
    left = available_bytes - weights_bytes - workspace_bytes
    uses = (
        f"{size_text(available_bytes)} free, {size_text(weights_bytes)} of weights, "
        f"{size_text(workspace_bytes)} of workspace"
    )
    if kv_cache_bytes is None:
        room = max(int(left * SHARE), 0)
        longest = blocks_for(limits.max_model_len, kv.block_size)
        useful = max(longest, limits.max_num_seqs * longest // FILL)
        blocks = min(room // kv.bytes_per_block, useful)
    else:
        _check_given(kv_cache_bytes, left, uses)
        room = kv_cache_bytes
        blocks = room // kv.bytes_per_block
    if blocks < 1:
        raise _too_small(kv, room, uses)
    length = min(limits.max_model_len, blocks * kv.block_size)
    message = _shortened(limits.max_model_len, length, blocks)
    kv_bytes = blocks * kv.bytes_per_block
    return Budget(blocks, kv_bytes, length, message)


def _check_given(kv_cache_bytes: int, left: int, uses: str) -> None:
    if kv_cache_bytes > left:
        raise DeviceError(
            f"a KV cache of {size_text(kv_cache_bytes)} was asked for, "
            f"{size_text(max(left, 0))} is there for it ({uses})",
            hint="lower FLARE_KV_CACHE_MEMORY",
        )


def blocks_for(tokens: int, block_size: int) -> int:
    """Return the blocks that a sequence of this length takes."""
    return -(-tokens // block_size)


def _shortened(asked: int, length: int, blocks: int) -> str | None:
    if length == asked:
        return None
    return f"max_model_len lowered from {asked} to {length} tokens: the KV pool has {blocks} blocks"


def _too_small(kv: KVLayout, room: int, uses: str) -> DeviceError:
    return DeviceError(
        f"not even one sequence of {kv.block_size} tokens fits: its KV block needs "
        f"{size_text(kv.bytes_per_block)}, {size_text(room)} is there for the cache ({uses})",
        hint="free memory, or raise FLARE_KV_CACHE_MEMORY",
    )


def size_text(count: int) -> str:
    """Return a size with a binary unit, as ``1.5 GiB``; below 1 KiB in bytes."""
    value = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
