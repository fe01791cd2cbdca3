"""Request bodies as tables of fields, from the models: for ``/docs`` and the API reference."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct
from pydantic import BaseModel

from app.meanings import Meanings, field_names, nested_models

_RANGES = (
    ("minimum", "maximum", ""),
    ("minLength", "maxLength", " characters"),
    ("minItems", "maxItems", " entries"),
    ("minProperties", "maxProperties", " entries"),
)
_POWERS = {2**63 - 1: "2^63 - 1", -(2**63): "-2^63", 2**31 - 1: "2^31 - 1", -(2**31): "-2^31"}


class Row(Struct, frozen=True):
    """One field. ``type`` and all others are words for people."""

    name: str
    type: str
    text: str
    default: str
    off: str
    limits: str
    origin: str

    @property
    def cells(self) -> tuple[str, ...]:
        """What stands behind the name, in the order of ``Table.heads``."""
        return (self.type, self.text, self.default, self.off, self.limits, self.origin)


class Table(Struct, frozen=True):
    """The fields of one model. ``about``: the model's docstring; ``heads``: of the columns."""

    name: str
    about: str
    rows: tuple[Row, ...]
    heads: tuple[str, ...] = ("field", "type", "meaning", "default", "off", "limits", "origin")


def described_schema(model: type[BaseModel], meanings: Meanings) -> dict[str, Any]:
    """The JSON schema of ``model``, every field with its meaning as description.

    Raises KeyError for a field without one.
    """
    schema = model.model_json_schema()
    for nested in nested_models(model):
        properties = _properties(schema, model, nested)
        for name in field_names(nested):
            properties[name]["description"] = meanings.of(nested, name).sentence
    return schema


def tables(model: type[BaseModel], meanings: Meanings) -> list[Table]:
    """A table for ``model`` and one for each model within it.

    Raises KeyError for a field without a meaning.
    """
    schema = model.model_json_schema()
    return [
        _table(nested, _properties(schema, model, nested), meanings)
        for nested in nested_models(model)
    ]


def _properties(
    schema: Mapping[str, Any], root: type[BaseModel], nested: type[BaseModel]
) -> dict[str, Any]:
    own = schema if nested is root else schema["$defs"][nested.__name__]
    properties: dict[str, Any] = own.get("properties", {})
    return properties


def _table(model: type[BaseModel], properties: Mapping[str, Any], meanings: Meanings) -> Table:
    rows = []
    for name, attribute in field_names(model).items():
        meaning = meanings.of(model, name)
        required = model.model_fields[attribute].is_required()
        limits = [*_limits(properties[name]), meaning.limits]
        rows.append(
            Row(
                name=name,
                type=type_words(properties[name]),
                text=meaning.text,
                default="required" if required else meaning.default or "none",
                off="" if required else meaning.off or "null",
                limits="; ".join(dict.fromkeys(text for text in limits if text)),
                origin=meaning.origin,
            )
        )
    rows.sort(key=lambda row: (row.default != "required", row.origin == "extension"))
    return Table(model.__name__, (model.__doc__ or "").partition("\n")[0], tuple(rows))


def type_words(field: Mapping[str, Any]) -> str:
    """A short word for a field's type; members of a union are joined by "or"; null is left out."""
    for union in ("anyOf", "oneOf"):
        if union in field:
            words = (type_words(member) for member in field[union])
            return " or ".join(dict.fromkeys(word for word in words if word != "null"))
    if "$ref" in field:
        return str(field["$ref"]).rpartition("/")[2]
    if "enum" in field or "const" in field:
        values = field.get("enum", [field.get("const")])
        return " or ".join(json.dumps(value) for value in values)
    if field.get("type") == "array":
        return f"list of {type_words(field.get('items', {}))}"
    return str(field.get("type", "any"))


def _limits(field: Mapping[str, Any]) -> Iterator[str]:
    """What the schema allows, in words."""
    if "exclusiveMinimum" in field:
        yield f"above {_number(field['exclusiveMinimum'])}"
    for low, high, unit in _RANGES:
        least, most = field.get(low), field.get(high)
        if least is not None and most is not None:
            yield f"{_number(least)} to {_number(most)}{unit}"
        elif least is not None:
            yield f"at least {_number(least)}{unit}"
        elif most is not None:
            yield f"at most {_number(most)}{unit}"
    if "pattern" in field:
        yield f"matches `{field['pattern']}`"
    for member in field.get("anyOf", ()):
        yield from _limits(member)


def _number(value: object) -> str:
    """Powers of two as such; whole floats as integers."""
    if isinstance(value, int | float) and value in _POWERS:
        return _POWERS[int(value)]
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
