"""Stop strings over a text that arrives in parts."""

from collections.abc import Sequence


class StopMatcher:
    """Finds the first stop string of a stream, the same wherever the parts are cut.

    The match that is complete first wins; of those complete at the same character, the one that
    began first. Text that may yet become a stop string is held back. ``include``: the stop string
    itself is part of the output (and nothing needs to be held back).

    One automaton per stop string (Knuth, Morris and Pratt 1977): linear in the text.
    """

    __slots__ = (
        "_failures",
        "_firsts",
        "_found",
        "_held",
        "_include",
        "_matched",
        "_states",
        "_stopped",
        "_stops",
    )

    def __init__(self, stops: Sequence[str], include: bool = False) -> None:
        if any(not stop for stop in stops):
            raise ValueError("a stop string is empty")
        self._stops = tuple(stops)
        self._failures = tuple(_failure_table(stop) for stop in stops)
        self._firsts = frozenset(stop[0] for stop in stops)
        self._include = include
        self._states = [0] * len(self._stops)  # characters of each stop that the text ends with
        self._matched = 0  # the longest of them
        self._held = ""
        self._stopped = False
        self._found: str | None = None

    @property
    def found(self) -> str | None:
        """The stop string that ended the text, once one has."""
        return self._found

    def push(self, text: str) -> tuple[str, bool]:
        """Take more text; return (what can be sent, whether a stop string is complete).

        Nothing after the stop string is ever returned; once stopped, pushes give ("", True).
        """
        if self._stopped:
            return "", True
        if not self._matched and self._firsts.isdisjoint(text):
            return text, False
        for index, char in enumerate(text):
            length = self._advance(char)
            if length:
                return self._stop(text[: index + 1], length), True
        return self._hold(text), False

    def flush(self) -> str:
        """End of the text: return what was held back."""
        held, self._held = self._held, ""
        return held

    def _advance(self, char: str) -> int:
        """Feed one character to each automaton; return the longest complete stop's length or 0."""
        longest = 0
        for index, stop in enumerate(self._stops):
            state, failure = self._states[index], self._failures[index]
            while state and stop[state] != char:
                state = failure[state - 1]
            state += stop[state] == char
            self._states[index] = state
            if state == len(stop):
                if state > longest:
                    longest, self._found = state, stop
                self._states[index] = 0
        return longest

    def _stop(self, text: str, length: int) -> str:
        self._stopped = True
        whole = self._held + text
        self._held = ""
        return whole if self._include else whole[: len(whole) - length]

    def _hold(self, text: str) -> str:
        whole = self._held + text
        self._matched = max(self._states, default=0)
        cut = len(whole) if self._include else len(whole) - self._matched
        self._held = whole[cut:]
        return whole[:cut]


def _failure_table(stop: str) -> tuple[int, ...]:
    """For each prefix of ``stop``: the length of its longest proper suffix that is a prefix."""
    table = [0] * len(stop)
    length = 0
    for index in range(1, len(stop)):
        while length and stop[index] != stop[length]:
            length = table[length - 1]
        length += stop[index] == stop[length]
        table[index] = length
    return tuple(table)
