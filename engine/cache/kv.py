"""The cache as sequences see it: block tables that grow, share prefixes, and are given back."""

from collections.abc import Iterable

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from engine.cache.pool import BlockPool
from engine.cache.prefix import block_keys, root_key


class BlockTable(Struct):
    """One sequence's blocks, in order of position.

    keys: of the full prompt blocks (the only ones that may be shared: all their positions have
    the prompt role). published: how many of them were offered to the prefix cache.
    """

    keys: tuple[bytes, ...]
    lookup: int  # how many leading keys a lookup may use
    blocks: list[int] = field(default_factory=list)
    published: int = 0


class KVCache:
    """Accounts for the blocks of one core's key/value cache. Holds no tensor."""

    def __init__(self, num_blocks: int, block_size: int, prefix_cache: bool) -> None:
        self._pool = BlockPool(num_blocks)
        self._block_size = block_size
        self._prefix_cache = prefix_cache

    @property
    def capacity(self) -> int:
        """Blocks that sequences can own in total."""
        return self._pool.capacity

    @property
    def capacity_tokens(self) -> int:
        """The longest sequence that the cache can hold alone."""
        return self._pool.capacity * self._block_size

    @property
    def available(self) -> int:
        """Blocks that can be given now, evicting idle ones if need be."""
        return self._pool.available

    @property
    def used(self) -> int:
        """Blocks owned by sequences."""
        return self._pool.used

    @property
    def idle(self) -> int:
        """Blocks that only the prefix cache remembers."""
        return self._pool.idle

    def keys(self, prompt: NDArray[np.int32], salt: str | None) -> tuple[bytes, ...]:
        """Keys of the full blocks of a prompt, in the cache domain that the salt names."""
        if not self._prefix_cache:
            return ()
        fields = () if salt is None else (("salt", salt),)
        return block_keys(root_key(fields), prompt, self._block_size)

    def table(self, keys: tuple[bytes, ...], prompt_len: int, lookup: bool) -> BlockTable:
        """Return an empty table for a prompt; ``lookup`` False never reads the prefix cache.

        At least the last prompt token is always computed: its logits are wanted.
        """
        return BlockTable(keys, (prompt_len - 1) // self._block_size if lookup and keys else 0)

    def admit(self, table: BlockTable, tokens: int, keep_free: int) -> int | None:
        """Take blocks for ``tokens`` positions, sharing what is cached; leave ``keep_free``.

        Returns the number of cached tokens, or None (and takes nothing) when blocks are short.
        """
        hits = self._pool.find(table.keys[: table.lookup])
        fresh = self.blocks_for(tokens) - len(hits)
        if fresh + keep_free > self._pool.available - self._pool.idle_among(hits):
            return None
        self._pool.share(hits)
        table.blocks = hits + self._pool.allocate(fresh)
        table.published = len(hits)
        return len(hits) * self._block_size

    def grow(self, table: BlockTable, tokens: int, keep_free: int = 0) -> bool:
        """Let the table hold ``tokens`` positions; False (and nothing taken) when it cannot.

        What is taken leaves ``keep_free`` blocks.
        """
        missing = self.blocks_for(tokens) - len(table.blocks)
        if missing <= 0:
            return True
        if missing + keep_free > self._pool.available:
            return False
        table.blocks += self._pool.allocate(missing)
        return True

    def publish(self, table: BlockTable, computed: int) -> None:
        """Offer the full prompt blocks whose ``computed`` positions are complete."""
        full = min(computed // self._block_size, len(table.keys))
        for index in range(table.published, full):
            self._pool.publish(table.blocks[index], table.keys[index])
        table.published = max(table.published, full)

    def release(self, table: BlockTable) -> None:
        """Give all blocks back; published ones stay findable until they are evicted."""
        self._pool.release(table.blocks)
        table.blocks = []
        table.published = 0

    def poison(self, table: BlockTable) -> list[int]:
        """Withdraw the sequence's blocks from the prefix cache: their content is not finite.

        Returns those that nobody else owns; they must be scrubbed before they are used again.
        """
        return [block for block in table.blocks if self._pool.forget(block)]

    def blocks_for(self, tokens: int) -> int:
        """Blocks that ``tokens`` positions take."""
        return -(-tokens // self._block_size)

    def check_integrity(self, tables: Iterable[BlockTable]) -> None:
        """Raise RuntimeError unless exactly these tables own what the pool says is owned."""
        self._pool.check_integrity([table.blocks for table in tables])
