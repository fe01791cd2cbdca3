"""The cache as sequences see it: sharing, growth, and a random walk that must not leak."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.cache.kv import BlockTable, KVCache

B = 4


def table(
    cache: KVCache, ids: list[int], salt: str | None = None, lookup: bool = True
) -> BlockTable:
    return cache.table(cache.keys(np.array(ids, np.int32), salt), len(ids), lookup)


def serve(cache: KVCache, ids: list[int], salt: str | None = None) -> int | None:
    """Admit, compute and release a prompt; return its cached tokens."""
    t = table(cache, ids, salt)
    cached = cache.admit(t, len(ids), 0)
    cache.publish(t, len(ids))
    cache.release(t)
    return cached


@pytest.mark.parametrize("length", [1, B - 1, B, B + 1, 2 * B, 2 * B + 1])
def test_a_full_hit_leaves_a_token_to_compute(length: int) -> None:
    cache, ids = KVCache(20, B, True), list(range(length))
    assert serve(cache, ids) == 0
    cached = serve(cache, ids)
    assert cached == (length - 1) // B * B
    assert cached is not None and cached <= length - 1


def test_salts_separate_domains() -> None:
    cache, ids = KVCache(20, B, True), list(range(2 * B + 1))
    assert serve(cache, ids, "S") == 0
    assert serve(cache, ids) == 0
    assert serve(cache, ids, "T") == 0
    assert serve(cache, ids, "S") == 2 * B


def test_a_block_is_shared_only_when_complete() -> None:
    cache, ids = KVCache(20, B, True), list(range(3 * B))
    writer = table(cache, ids)
    cache.admit(writer, len(ids), 0)
    cache.publish(writer, 2 * B - 1)
    reader = table(cache, ids)
    assert cache.admit(reader, len(ids), 0) == B
    assert reader.blocks[0] == writer.blocks[0]
    assert set(reader.blocks[1:]).isdisjoint(writer.blocks)


def test_generated_positions_are_never_shared() -> None:
    cache = KVCache(20, B, True)
    writer = table(cache, list(range(B + 2)))
    cache.admit(writer, B + 2, 0)
    cache.grow(writer, 3 * B)
    cache.publish(writer, 3 * B)
    cache.release(writer)
    assert cache.idle == 1


def test_no_lookup_when_told_so_or_switched_off() -> None:
    ids = list(range(3 * B))
    cache = KVCache(20, B, True)
    serve(cache, ids)
    assert cache.admit(table(cache, ids, lookup=False), len(ids), 0) == 0
    off = KVCache(20, B, False)
    serve(off, ids)
    assert serve(off, ids) == 0
    assert off.idle == 0


def test_admission_takes_nothing_when_blocks_are_short() -> None:
    cache = KVCache(6, B, True)
    ids = list(range(2 * B + 1))
    serve(cache, ids)
    assert cache.idle == 2
    longer = table(cache, [*ids, *range(50, 50 + 4 * B)])
    assert cache.admit(longer, len(ids) + 4 * B, 0) is None
    assert (cache.used, cache.idle, cache.available) == (0, 2, 5)
    # Two idle hits count against what is available: 3 blocks, 2 of them hits, keep 3 free: no.
    again = table(cache, ids)
    assert cache.admit(again, len(ids), 3) is None
    assert cache.admit(again, len(ids), 2) == 2 * B


def test_poisoned_blocks_are_withdrawn_and_named_once_they_have_no_other_owner() -> None:
    cache, ids = KVCache(20, B, True), list(range(2 * B + 1))
    first, second = table(cache, ids), table(cache, ids)
    cache.admit(first, len(ids), 0)
    cache.publish(first, len(ids))
    cache.admit(second, len(ids), 0)
    assert cache.poison(first) == first.blocks[2:]
    cache.release(first)
    assert cache.poison(second) == second.blocks
    cache.release(second)
    assert cache.idle == 0
    assert serve(cache, ids) == 0


class CacheWalk(RuleBasedStateMachine):
    """Random admissions, growth, publication, poison and release of prompts that share heads."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = KVCache(12, B, True)
        self.tables: list[tuple[BlockTable, list[int], int]] = []
        self.content: dict[int, tuple[int, ...]] = {}  # block -> ids of all positions up to its end

    @rule(head=st.integers(0, 3), tail=st.integers(0, 2), length=st.integers(1, 20))
    def admit(self, head: int, tail: int, length: int) -> None:
        ids = ([head] * 8 + [tail] * 12)[:length]
        new = table(self.cache, ids)
        before = self.cache.available
        cached = self.cache.admit(new, length, 0)
        if cached is None:
            assert self.cache.available == before
            return
        assert cached <= length - 1
        for i in range(cached // B):
            assert self.content[new.blocks[i]] == tuple(ids[: (i + 1) * B])
        for i in range(cached // B, length // B):
            self.content[new.blocks[i]] = tuple(ids[: (i + 1) * B])
        self.tables.append((new, ids, cached))

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), tokens=st.integers(1, 30))
    def grow(self, data: st.DataObject, tokens: int) -> None:
        chosen, _, _ = data.draw(st.sampled_from(self.tables))
        size = len(chosen.blocks)
        grew = self.cache.grow(chosen, tokens)
        assert len(chosen.blocks) == (max(size, self.cache.blocks_for(tokens)) if grew else size)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        chosen, ids, cached = data.draw(st.sampled_from(self.tables))
        self.cache.publish(chosen, data.draw(st.integers(cached, len(ids) + 10)))

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), poison=st.booleans())
    def leave(self, data: st.DataObject, poison: bool) -> None:
        index = data.draw(st.integers(0, len(self.tables) - 1))
        chosen, _, _ = self.tables.pop(index)
        if poison:
            self.cache.poison(chosen)
        self.cache.release(chosen)

    @invariant()
    def nothing_leaks(self) -> None:
        self.cache.check_integrity(t for t, _, _ in self.tables)


TestCacheWalk = CacheWalk.TestCase
TestCacheWalk.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
