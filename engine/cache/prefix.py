"""Keys of the prefix cache: chained hashes over full prompt blocks."""

import hashlib
import struct
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

KEY_BYTES = 16


def root_key(fields: Iterable[tuple[str, str]]) -> bytes:
    """Hash the fields that separate cache domains, as (kind, value) pairs.

    Each kind and value is length-prefixed, so that no two different lists of fields meet: a salt
    "S" and another field with the value "S" are different domains.
    """
    digest = hashlib.blake2b(digest_size=KEY_BYTES, person=b"flare-prefix")
    for kind, value in fields:
        for text in (kind, value):
            data = text.encode("utf-8", "surrogatepass")
            digest.update(struct.pack("<Q", len(data)))
            digest.update(data)
    return digest.digest()


def block_keys(root: bytes, token_ids: NDArray[np.int32], block_size: int) -> tuple[bytes, ...]:
    """One key per full block: blake2b(parent key, token ids); the first block's parent is root.

    Equal keys mean equal ids at equal positions since the start, in the same cache domain.
    """
    keys: list[bytes] = []
    parent = root
    data = memoryview(np.ascontiguousarray(token_ids, dtype="<i4").tobytes())
    stride = 4 * block_size
    for start in range(0, len(data) - stride + 1, stride):
        digest = hashlib.blake2b(parent, digest_size=KEY_BYTES)
        digest.update(data[start : start + stride])
        parent = digest.digest()
        keys.append(parent)
    return tuple(keys)
