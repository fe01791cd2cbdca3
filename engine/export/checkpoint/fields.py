"""Typed reading of configuration values, with errors that name the key and what was found."""

from collections.abc import Mapping
from math import isfinite
from typing import Any

from engine.errors import CheckpointError

LARGEST = 1 << 31


class Fields:
    """Values of one configuration mapping; ``source`` begins every message."""

    def __init__(self, source: str, values: Mapping[str, Any]) -> None:
        self.source = source
        self.values = values

    def has(self, key: str) -> bool:
        """Whether the key is there and not null."""
        return self.values.get(key) is not None

    def size(self, key: str, default: int | None = None) -> int:
        """A positive integer below 2^31 (never a boolean)."""
        value = self._get(key, default)
        if type(value) is not int or not 0 < value < LARGEST:
            raise self.wrong(key, "a positive integer", value)
        return value

    def real(self, key: str, default: float | None = None) -> float:
        """A finite positive number."""
        value = self._get(key, default)
        if type(value) not in (int, float) or not isfinite(value) or value <= 0:
            raise self.wrong(key, "a positive number", value)
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self._get(key, default)
        if type(value) is not bool:
            raise self.wrong(key, "true or false", value)
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, "a string", value)
        return value

    def ids(self, key: str) -> tuple[int, ...]:
        """Token ids: absent, an integer or a list of integers."""
        value = self.values.get(key)
        found = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(item) is int and 0 <= item < LARGEST for item in found):
            raise self.wrong(key, "a token id or a list of token ids", value)
        return tuple(found)

    def wrong(self, key: str, expected: str, found: object) -> CheckpointError:
        """An error for a value of the wrong type or range."""
        return CheckpointError(f"{self.source}: {key} must be {expected}, found {found!r:.80}")

    def unsupported(self, what: str) -> CheckpointError:
        """An error for a feature that export does not have, by its name."""
        return CheckpointError(f"{self.source}: {what} is not supported")

    def _get(self, key: str, default: Any) -> Any:
        value = self.values.get(key)
        if value is not None:
            return value
        if default is None:
            raise CheckpointError(f"{self.source}: {key} is missing")
        return default
