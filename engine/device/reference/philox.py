"""Philox 4x32-10, the counter-based generator of all draws (Salmon et al. 2011, section 5.3)."""

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Return four 32-bit words for a counter of four words and a key of two."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        p0, p1 = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & _MASK, (p0 >> 32) ^ c3 ^ k1, p0 & _MASK
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def uniform(seed: int, position: int) -> float:
    """Return the number in [0, 1) of (seed, position): the first 53 bits that Philox gives for
    key = seed and counter = position, low words first; the first output word is the high half."""
    seed &= (1 << 64) - 1
    counter = (position & _MASK, position >> 32, 0, 0)
    high, low, _, _ = philox(counter, (seed & _MASK, seed >> 32))
    return ((high << 32 | low) >> 11) * 2.0**-53
