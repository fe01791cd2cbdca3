"""English prose that every Python carries: the language reference of its own help texts."""

import random
from pydoc_data import topics


def english() -> str:
    """Return about 460,000 characters of prose with some code (PSF licence, not copied here)."""
    return "\n".join(text for _, text in sorted(topics.topics.items()))


def windows_of(ids: list[int], count: int, length: int) -> list[list[int]]:
    """Return windows of ``ids`` at places that a fixed seed chose."""
    starts = random.Random(7).sample(range(len(ids) - length), count)
    return [ids[start : start + length] for start in starts]
