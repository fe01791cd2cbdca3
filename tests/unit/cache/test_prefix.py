"""Prefix keys: chaining, domains."""

import numpy as np

from engine.cache.prefix import block_keys, root_key


def keys(ids: list[int], fields: tuple[tuple[str, str], ...] = ()) -> tuple[bytes, ...]:
    return block_keys(root_key(fields), np.array(ids, np.int32), 4)


def test_only_full_blocks_have_keys() -> None:
    assert [len(keys(list(range(n)))) for n in (1, 3, 4, 5, 8)] == [0, 0, 1, 1, 2]


def test_a_key_depends_on_all_earlier_tokens() -> None:
    a, b = keys([1, 2, 3, 4, 5, 6, 7, 8]), keys([1, 2, 3, 9, 5, 6, 7, 8])
    assert a[0] != b[0]
    assert a[1] != b[1]
    assert keys([1, 2, 3, 4, 9, 9, 9, 9])[0] == a[0]


def test_fields_are_tagged_and_length_prefixed() -> None:
    domains = [
        (),
        (("salt", "S"),),
        (("adapter", "S"),),
        (("salt", "T"),),
        (("salt", ""),),
        (("salt", "S"), ("adapter", "")),
        (("salt", "Sadapter"),),
    ]
    roots = {root_key(fields) for fields in domains}
    assert len(roots) == len(domains)
    assert len({keys([1, 2, 3, 4], fields)[0] for fields in domains}) == len(domains)


def test_any_text_makes_a_key() -> None:
    assert root_key((("salt", "\ud83d \x00 é"),)) != root_key(())
