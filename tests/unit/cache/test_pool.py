"""Block pool: states, reference counts, eviction order."""

import pytest

from engine.cache.pool import NULL_BLOCK, BlockPool


def test_the_null_block_is_never_handed_out() -> None:
    pool = BlockPool(5)
    blocks = pool.allocate(4)
    assert NULL_BLOCK not in blocks
    assert sorted(blocks) == [1, 2, 3, 4]
    assert (pool.available, pool.used, pool.capacity) == (0, 4, 4)
    pool.check_integrity([blocks])


def test_allocating_too_many_takes_nothing() -> None:
    pool = BlockPool(4)
    with pytest.raises(ValueError, match="4 blocks wanted, 3 available"):
        pool.allocate(4)
    assert pool.available == 3


def test_released_blocks_are_free_again() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(2)
    pool.release(blocks)
    assert pool.available == 3
    with pytest.raises(ValueError, match="released without an owner"):
        pool.release(blocks[:1])


def test_a_shared_block_is_free_when_its_last_owner_leaves() -> None:
    pool = BlockPool(4)
    [block] = pool.allocate(1)
    pool.publish(block, b"k")
    pool.share(pool.find([b"k"]))
    pool.release([block])
    assert pool.used == 1
    pool.release([block])
    assert (pool.used, pool.idle) == (0, 1)
    assert pool.find([b"k"]) == [block]
    pool.check_integrity([])


def test_idle_blocks_are_evicted_last_used_last_and_tails_before_heads() -> None:
    pool = BlockPool(5)
    first, second = pool.allocate(2), pool.allocate(2)
    for name, blocks in (("a", first), ("b", second)):
        for i, block in enumerate(blocks):
            pool.publish(block, f"{name}{i}".encode())
    pool.release(first)
    pool.release(second)
    pool.share(pool.find([b"a0"]))
    pool.release(first[:1])  # a0 was used last
    assert pool.allocate(3) == [first[1], second[1], second[0]]
    assert pool.find([b"a0"]) == [first[0]]
    assert pool.find([b"b0"]) == []


def test_find_stops_at_the_first_missing_key() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(2)
    pool.publish(blocks[0], b"0")
    pool.publish(blocks[1], b"2")
    assert pool.find([b"0", b"1", b"2"]) == [blocks[0]]


def test_the_same_content_is_published_once() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(2)
    pool.publish(blocks[0], b"k")
    pool.publish(blocks[1], b"k")
    assert pool.find([b"k"]) == [blocks[0]]
    pool.release(blocks)
    assert (pool.idle, pool.available) == (1, 3)
    pool.check_integrity([])


def test_a_forgotten_block_is_not_found() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(1)
    pool.publish(blocks[0], b"k")
    assert pool.forget(blocks[0])
    assert pool.find([b"k"]) == []
    pool.publish(blocks[0], b"k")
    pool.share(blocks)
    assert not pool.forget(blocks[0])
    pool.check_integrity([blocks, blocks])


def test_integrity_sees_a_leak() -> None:
    pool = BlockPool(4)
    pool.allocate(1)
    with pytest.raises(RuntimeError, match="reference counts"):
        pool.check_integrity([])


def test_a_pool_needs_a_usable_block() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        BlockPool(1)
