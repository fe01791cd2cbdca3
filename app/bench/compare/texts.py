"""Whether both legs answered the same, letter for letter."""

from collections.abc import Iterable, Sequence
from itertools import takewhile

from msgspec import Struct

from app.bench.compare.samples import Taken

AROUND = 24  # letters shown on either side of a difference


class Mismatch(Struct, frozen=True):
    """The first difference of one request's texts. position: letters that agree before it.

    excerpts: by leg, the letters around the difference.
    """

    cell: str
    pair: int
    request: int
    position: int
    excerpts: dict[str, str]


class Texts(Struct, frozen=True):
    """compared: requests that both legs served. different: those whose texts differ."""

    compared: int
    different: int
    first: Mismatch | None


def compare_texts(taken: Iterable[Taken], legs: Sequence[str]) -> Texts:
    """Compare request by request within each pair; a request that failed has no text."""
    runs = {(t.sample.cell, t.sample.pair, t.sample.leg): t.texts for t in taken}
    compared, found = 0, []
    for (cell, pair, leg), texts in runs.items():
        others = runs.get((cell, pair, legs[1]))
        if leg != legs[0] or others is None:
            continue
        for request in sorted(texts.keys() & others.keys()):
            compared += 1
            both = (texts[request], others[request])
            if both[0] != both[1]:
                found.append(_mismatch(cell, pair, request, both, legs))
    return Texts(compared, len(found), found[0] if found else None)


def _mismatch(
    cell: str, pair: int, request: int, texts: tuple[str, str], legs: Sequence[str]
) -> Mismatch:
    same = takewhile(lambda letters: letters[0] == letters[1], zip(*texts, strict=False))
    position = sum(1 for _ in same)
    around = slice(max(0, position - AROUND), position + AROUND)
    excerpts = {leg: text[around] for leg, text in zip(legs, texts, strict=True)}
    return Mismatch(cell, pair, request, position, excerpts)
