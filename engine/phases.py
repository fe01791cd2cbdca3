"""Times the phases of a load."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter


class Phases:
    """Seconds by phase, in order."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._began = perf_counter()

    @contextmanager
    def time(self, phase: str) -> Iterator[None]:
        """Time what runs inside."""
        began = perf_counter()
        yield
        self._seconds[phase] = perf_counter() - began

    @property
    def seconds(self) -> Mapping[str, float]:
        """Each phase so far, and ``total`` since the start."""
        return {**self._seconds, "total": perf_counter() - self._began}
