"""The waiting line: by priority, then by arrival."""

from bisect import insort
from collections.abc import Iterator

from engine.schedule.sequence import Sequence


def _order(sequence: Sequence) -> tuple[int, int]:
    return sequence.order


class OrderedSequences:
    """Sequences in order of priority and arrival; a preempted one finds its old place again."""

    def __init__(self) -> None:
        self._items: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._items)

    def add(self, sequence: Sequence) -> None:
        insort(self._items, sequence, key=_order)

    def remove(self, sequence: Sequence) -> None:
        self._items.remove(sequence)

    @property
    def first(self) -> Sequence:
        return self._items[0]

    @property
    def last(self) -> Sequence:
        """The one that can wait longest: the victim of a preemption."""
        return self._items[-1]
