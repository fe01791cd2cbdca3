"""Strict decoding of JSON into frozen structs, driven by their type hints."""

import json
import math
import types
from collections import Counter
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from typing import Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

from msgspec import Struct

from engine.core.errors import FormatError

Decoder = Callable[[Any], Any]
LARGEST_INT = 2**63 - 1
_SHOWN = 80


class Fault(Exception):
    """A value does not fit; each level that it passes adds its key in front."""

    def __init__(self, expected: str, found: str, key: str = "") -> None:
        super().__init__(expected)
        self.expected = expected
        self.found = found
        self.keys = [key] if key else []

    def at(self, key: str) -> "Fault":
        self.keys.insert(0, key)
        return self


def shown(value: Any) -> str:
    """Return a short, one-line form of a value for an error message."""
    if isinstance(value, dict):
        return f"an object with {len(value)} keys"
    if isinstance(value, list):
        return f"an array of {len(value)}"
    text = ascii(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def parse_json(data: bytes, file: str) -> Any:
    """Parse JSON, refusing duplicate keys, non-finite numbers and integers beyond 64 bits."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(items)
        if len(result) != len(items):
            twice, _ = Counter(key for key, _ in items).most_common(1)[0]
            raise FormatError(f"{file}: {shown(twice)}", "one value per key", "the key twice")
        return result

    def constant(name: str) -> NoReturn:
        raise FormatError(file, "finite numbers", name)

    def number(text: str) -> float:
        return float(text) if math.isfinite(float(text)) else constant(text[:_SHOWN])

    try:
        return json.loads(
            data.decode(), object_pairs_hook=pairs, parse_constant=constant, parse_float=number
        )
    except (ValueError, RecursionError) as error:
        raise FormatError(file, "JSON", f"{shown(str(error))}") from error


def decode_with(decoder: Decoder, value: Any, where: str) -> Any:
    """Run a decoder; a fault becomes a FormatError that names the key under ``where``."""
    try:
        return decoder(value)
    except Fault as fault:
        key = "".join(fault.keys).lstrip(".")
        raise FormatError(
            f"{where}: {key}" if key else where, fault.expected, fault.found
        ) from None


def _string(value: Any) -> str:
    if type(value) is not str:
        raise Fault("a string", shown(value))
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Fault("valid Unicode", shown(value)) from None
    return value


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise Fault("an integer", shown(value))
    if abs(value) > LARGEST_INT:
        raise Fault("an integer below 2^63", "a larger one")
    return value


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise Fault("true or false", shown(value))
    return value


def _number(value: Any) -> float:
    if type(value) is int:
        return float(_integer(value))
    if type(value) is not float or not math.isfinite(value):
        raise Fault("a finite number", shown(value))
    return value


def _null(value: Any) -> None:
    if value is not None:
        raise Fault("null", shown(value))


_SCALARS: dict[Any, tuple[type, Decoder]] = {
    str: (str, _string),
    int: (int, _integer),
    bool: (bool, _boolean),
    float: (float, _number),
    type(None): (type(None), _null),
}


def _choice(values: Mapping[Any, Any]) -> Decoder:
    names = ", ".join(str(value) for value in values)

    def decode(value: Any) -> Any:
        if type(value) is not str or value not in values:
            raise Fault(f"one of {names}", shown(value))
        return values[value]

    return decode


def _array(item: Decoder) -> Decoder:
    def decode(value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise Fault("an array", shown(value))
        index = 0
        result = []
        try:
            for index, element in enumerate(value):  # noqa: B007 (named in the fault)
                result.append(item(element))
        except Fault as fault:
            raise fault.at(f"[{index}]") from None
        return tuple(result)

    return decode


def _mapping(item: Decoder) -> Decoder:
    def decode(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise Fault("an object", shown(value))
        result = {}
        for key, element in value.items():
            try:
                result[key] = item(element)
            except Fault as fault:
                raise fault.at(f".{shown(key)[1:-1]}") from None
        return result

    return decode


def _union(hints: tuple[Any, ...]) -> Decoder:
    by_type = {_SCALARS[hint][0]: _SCALARS[hint][1] for hint in hints}
    names = " or ".join(sorted(kind.__name__ for kind in by_type))

    def decode(value: Any) -> Any:
        decoder = by_type.get(type(value))
        if decoder is None:
            raise Fault(names, shown(value))
        return decoder(value)

    return decode


def _record(cls: Any) -> Decoder:
    hints = get_type_hints(cls)
    fields = [(name, decoder_for(hints[name])) for name in cls.__struct_fields__]
    names = {name for name, _ in fields}

    def decode(value: Any) -> Any:
        if type(value) is not dict:
            raise Fault("an object", shown(value))
        if value.keys() != names:
            _differing_keys(value.keys(), names)
        try:
            return cls(*[decoder(value[name]) for name, decoder in fields])
        except Fault:
            return _locate(fields, value)

    return decode


def _locate(fields: list[tuple[str, Decoder]], value: dict[str, Any]) -> None:
    """Find the field that does not fit and raise its fault with its name."""
    for name, decoder in fields:
        try:
            decoder(value[name])
        except Fault as fault:
            raise fault.at(f".{name}") from None


def _differing_keys(found: Any, names: set[str]) -> None:
    unknown, missing = sorted(set(found) - names), sorted(names - set(found))
    if unknown:
        key = shown(unknown[0])[1:-1]
        raise Fault("no such key in this format version", "an unknown key", f".{key}")
    raise Fault("a value", "nothing (the key is missing)", f".{missing[0]}")


@cache
def decoder_for(hint: Any) -> Decoder:
    """Return the decoder of a type hint: scalars, Literal, enums, tuples, mappings, records.

    Made once for each hint: a decoder keeps nothing of what it decodes.
    """
    if hint in _SCALARS:
        return _SCALARS[hint][1]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return _choice({value: value for value in arguments})
    if origin in (Union, types.UnionType):
        return _union(arguments)
    if origin is tuple:
        return _array(decoder_for(arguments[0]))
    if origin is Mapping:
        return _mapping(decoder_for(arguments[1]))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _choice({member.value: member for member in hint})
    if isinstance(hint, type) and issubclass(hint, Struct):
        return _record(hint)
    raise TypeError(f"no strict decoder for {hint!r}")


def encode(value: Any) -> Any:
    """Turn frozen structs into JSON values: the inverse of the decoders."""
    if isinstance(value, Struct):
        return {name: encode(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, Mapping):
        return {key: encode(element) for key, element in value.items()}
    if isinstance(value, tuple | list):
        return [encode(element) for element in value]
    return value.value if isinstance(value, Enum) else value
