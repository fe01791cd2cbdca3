"""Which gaps between tokens fell together with the prefill of another request."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise

from msgspec import Struct

from app.bench.drive import Answer


class Gaps(Struct, frozen=True):
    """Seconds. A stall: another request's prompt was waiting or being computed meanwhile."""

    steady: tuple[float, ...]
    stalls: tuple[float, ...]


def tagged(answers: Sequence[Answer]) -> Gaps:
    """Sort the gaps of one run by what the client saw.

    A request's prefill lies between its sending and its first token, so a gap that overlaps that
    time may hold a step that carried a prefill chunk, or one that such a step held up; any other
    gap cannot. The request's own prefill ends before its first gap begins.
    """
    busy = _merged(sorted((_sent(a), a.first_token) for a in answers))
    begins, ends = [begin for begin, _ in busy], [end for _, end in busy]
    steady: list[float] = []
    stalls: list[float] = []
    for answer in answers:
        times = accumulate(answer.gaps, initial=answer.first_token)
        for begin, end in pairwise(times):
            # prefill intervals that end after the gap began, and begin before it ended
            first, last = bisect_right(ends, begin), bisect_left(begins, end)
            (stalls if first < last else steady).append(end - begin)
    return Gaps(tuple(steady), tuple(stalls))


def _sent(answer: Answer) -> float:
    return answer.due if answer.sent is None else answer.sent


def _merged(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Sorted spans, with those that overlap made one."""
    merged: list[tuple[float, float]] = []
    for begin, end in spans:
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged
