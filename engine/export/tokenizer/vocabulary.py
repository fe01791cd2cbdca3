"""The vocabulary arrays of a GGUF file, checked."""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from functools import cached_property
from typing import Any

from msgspec import Struct

from engine.errors import CheckpointError

PREFIX = "tokenizer.ggml."


class TokenType(IntEnum):
    """``tokenizer.ggml.token_type`` (GGUF specification)."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class Vocabulary(Struct, frozen=True, dict=True):
    """Pieces and their types, by token id."""

    tokens: tuple[str, ...]
    types: tuple[TokenType, ...]

    @cached_property
    def ids(self) -> dict[str, int]:
        """Piece -> token id."""
        return {token: token_id for token_id, token in enumerate(self.tokens)}

    @cached_property
    def size(self) -> int:
        """Ids that may be sampled: up to the last that is not padding (UNUSED)."""
        used = (i for i in range(len(self.types), 0, -1) if self.types[i - 1] != TokenType.UNUSED)
        return next(used, 0)

    def of_type(self, *types: TokenType) -> list[int]:
        """Token ids of these types, ascending."""
        return [token_id for token_id, kind in enumerate(self.types) if kind in types]


def read_vocabulary(source: str, metadata: Mapping[str, Any]) -> Vocabulary:
    """Read tokens and types. Raises CheckpointError for missing, malformed or duplicate ones."""
    tokens = strings(source, metadata, "tokens")
    types = _types(source, metadata, len(tokens))
    vocabulary = Vocabulary(tuple(tokens), types)
    if len(vocabulary.ids) != len(tokens):
        twice = next(t for i, t in enumerate(tokens) if vocabulary.ids[t] != i)
        raise CheckpointError(f"{source}: {PREFIX}tokens has {twice!r} twice")
    if vocabulary.size == 0:
        raise CheckpointError(f"{source}: {PREFIX}tokens has no usable token")
    return vocabulary


def strings(source: str, metadata: Mapping[str, Any], name: str) -> Sequence[str]:
    """Return a required array of strings."""
    return _array(source, metadata, name, (str,), "strings")


def numbers(source: str, metadata: Mapping[str, Any], name: str, count: int) -> Sequence[Any]:
    """Return a required array of ``count`` numbers."""
    values = _array(source, metadata, name, (int, float), "numbers")
    if len(values) != count:
        raise CheckpointError(
            f"{source}: {PREFIX}{name} has {len(values)} entries for {count} tokens"
        )
    return values


def _array(
    source: str, metadata: Mapping[str, Any], name: str, kinds: tuple[type, ...], what: str
) -> list[Any]:
    value = metadata.get(PREFIX + name)
    if value is None:
        raise CheckpointError(f"{source}: {PREFIX}{name} is missing")
    if not isinstance(value, list) or not all(type(item) in kinds for item in value):
        raise CheckpointError(f"{source}: {PREFIX}{name} must be an array of {what}")
    return value


def flag(source: str, metadata: Mapping[str, Any], name: str, default: bool) -> bool:
    """Return an optional true or false."""
    value = metadata.get(PREFIX + name, default)
    if type(value) is not bool:
        raise CheckpointError(f"{source}: {PREFIX}{name} must be true or false, found {value!r}")
    return value


def token_id(source: str, metadata: Mapping[str, Any], name: str, count: int) -> int | None:
    """Return an optional token id below ``count``."""
    value = metadata.get(PREFIX + name)
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < count:
        raise CheckpointError(
            f"{source}: {PREFIX}{name} must be a token id below {count}, found {value!r}"
        )
    return value


def _types(source: str, metadata: Mapping[str, Any], count: int) -> tuple[TokenType, ...]:
    value = numbers(source, metadata, "token_type", count)
    known = {int(kind): kind for kind in TokenType}
    try:
        return tuple([known[item] for item in value])
    except KeyError:
        wrong = next(item for item in value if item not in known)
        raise CheckpointError(
            f"{source}: {PREFIX}token_type has the unknown type {wrong!r}"
        ) from None
