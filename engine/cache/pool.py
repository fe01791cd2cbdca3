"""The block pool: who owns which block of the key/value cache."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

NULL_BLOCK = 0
"""Never handed out: unused block table entries and padded rows point at it."""


class BlockPool:
    """Reference counts, the free list, and the published blocks that may be found by key.

    A block is in exactly one state: free (no owner, no key), owned (count above zero, with or
    without a key) or idle (no owner, but a key: found again by ``find``, or evicted, least
    recently used first, when the free list is empty). Owned blocks with a key are immutable.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 2:
            raise ValueError(f"a block pool needs at least 2 blocks, not {num_blocks}")
        self._size = num_blocks
        self._counts = [0] * num_blocks
        # Last freed, first taken: memory that was never used stays untouched as long as it can.
        self._free = list(range(num_blocks - 1, 0, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()  # oldest first
        self._keys: dict[int, bytes] = {}
        self._index: dict[bytes, int] = {}

    @property
    def capacity(self) -> int:
        """Blocks that sequences can own in total."""
        return self._size - 1

    @property
    def available(self) -> int:
        """Blocks that ``allocate`` can give now."""
        return len(self._free) + len(self._idle)

    @property
    def used(self) -> int:
        """Blocks owned by sequences."""
        return self.capacity - self.available

    @property
    def idle(self) -> int:
        """Blocks that only the prefix cache remembers."""
        return len(self._idle)

    def allocate(self, count: int) -> list[int]:
        """Hand out ``count`` blocks, each with one owner. The caller checked ``available``."""
        if count > self.available:
            raise ValueError(f"{count} blocks wanted, {self.available} available")
        blocks = [self._take() for _ in range(count)]
        for block in blocks:
            self._counts[block] = 1
        return blocks

    def _take(self) -> int:
        if self._free:
            return self._free.pop()
        block, _ = self._idle.popitem(last=False)
        self.forget(block)
        return block

    def find(self, keys: Iterable[bytes]) -> list[int]:
        """Return the published blocks of the longest prefix of ``keys``."""
        blocks: list[int] = []
        for key in keys:
            block = self._index.get(key)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def idle_among(self, blocks: Iterable[int]) -> int:
        """Count the blocks that sharing would take out of ``available``."""
        return sum(1 for block in blocks if self._counts[block] == 0)

    def share(self, blocks: Iterable[int]) -> None:
        """Add an owner to published blocks."""
        for block in blocks:
            if self._counts[block] == 0:
                del self._idle[block]
            self._counts[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Take one owner from each block; the last blocks of a sequence are evicted first."""
        for block in reversed(blocks):
            count = self._counts[block] - 1
            if count < 0:
                raise ValueError(f"block {block} released without an owner")
            self._counts[block] = count
            if count:
                continue
            if block in self._keys:
                self._idle[block] = None
            else:
                self._free.append(block)

    def publish(self, block: int, key: bytes) -> None:
        """Make an owned, complete block findable, unless its content already is."""
        if key in self._index or block in self._keys:
            return
        self._keys[block] = key
        self._index[key] = block

    def forget(self, block: int) -> bool:
        """Withdraw a block's key; True when nobody but the one owner, if any, holds it."""
        key = self._keys.pop(block, None)
        if key is not None:
            del self._index[key]
        if block in self._idle:
            del self._idle[block]
            self._free.append(block)
        return self._counts[block] <= 1

    def check_integrity(self, owned: Iterable[Sequence[int]]) -> None:
        """Raise RuntimeError unless the states partition the pool and match the owners' tables."""
        counts = [0] * self._size
        for table in owned:
            for block in table:
                counts[block] += 1
        if counts != self._counts:
            wrong = [b for b in range(self._size) if counts[b] != self._counts[b]]
            raise RuntimeError(f"block reference counts are wrong for {wrong}")
        free, idle = set(self._free), set(self._idle)
        held = {block for block, count in enumerate(counts) if count}
        if len(free) != len(self._free) or free & idle or free & held or idle & held:
            raise RuntimeError("a block is in two states")
        if free | idle | held != set(range(1, self._size)):
            raise RuntimeError("a block is lost, or the null block was handed out")
        if not idle <= self._keys.keys() or free & self._keys.keys():
            raise RuntimeError("an idle block has no key, or a free block has one")
        if {key: block for block, key in self._keys.items()} != self._index:
            raise RuntimeError("the prefix index does not match the blocks' keys")
