"""Checks of a JSON schema before it is compiled: its size, and what it asks for.

The compiler refuses what it knows and does not support. What it would take for an annotation,
although JSON Schema gives it a meaning, is refused here.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from engine.grammar.limits import (
    MAX_DEPTH,
    MAX_PROPERTIES,
    MAX_SUBSCHEMAS,
    MAX_TEXT,
    check_length,
)

WHITE_SPACE = r"( |\n[ \t]{0,32})"
"""White space between two tokens of JSON: one space, or a line break with its indentation.

Without a bound, a model may write blanks until its tokens are used up.
"""
OPTIONS: Mapping[str, Any] = {
    "whitespace_pattern": WHITE_SPACE,
    "whitespace_flexible": True,
    "item_separator": ",",
    "key_separator": ":",
    "coerce_one_of": False,
    "lenient": False,
}
"""Compiler options; they stand above those that a schema may hold."""

_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "additionalItems")
_REFUSED = frozenset(
    (
        "$recursiveRef",
        "contentEncoding",
        "contentMediaType",
        "contentSchema",
        "dependencies",
        "dependentRequired",
        "dependentSchemas",
        "else",
        "maxContains",
        "minContains",
        "then",
        "unevaluatedItems",
    )
)


def check_schema(text: str) -> Any:
    """Return the schema that ``text`` spells. Raises ValueError with the reason, naming keywords.

    Draft 2020-12; keywords that JSON Schema does not define are annotations, as it says.
    """
    check_length(text, MAX_TEXT)
    try:
        schema = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError(f"is nested more than {MAX_DEPTH} deep") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"is not valid JSON: {error}") from None
    if not isinstance(schema, dict | bool):
        raise ValueError("must be a JSON object")
    if _is_deeper(schema, MAX_DEPTH):
        raise ValueError(f"is nested more than {MAX_DEPTH} deep")
    _check_keywords(schema)
    return schema


def _refuse_constant(name: str) -> None:
    raise ValueError(f"holds {name}, which is not JSON")


def _is_deeper(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit + 1):
        level = [child for item in level for child in _children(item)]
        if not level:
            return False
    return True


def _children(value: Any) -> list[Any]:
    """The objects and arrays directly within a value."""
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [item for item in items if isinstance(item, dict | list)]


def _check_keywords(schema: Any) -> None:
    found, waiting = 0, [schema]
    while waiting:
        node = waiting.pop()
        found += 1
        if found > MAX_SUBSCHEMAS:
            raise ValueError(f"holds more than {MAX_SUBSCHEMAS} schemas")
        if isinstance(node, dict):
            _check_node(node)
            waiting.extend(_subschemas(node))


def _check_node(node: dict[str, Any]) -> None:
    for keyword in node:
        if keyword in _REFUSED:
            raise ValueError(f"uses the keyword {keyword!r}, which is not supported")
    properties = node.get("properties")
    if isinstance(properties, dict) and len(properties) > MAX_PROPERTIES:
        raise ValueError(
            f"has an object of {len(properties)} properties, more than {MAX_PROPERTIES}"
        )


def _subschemas(node: dict[str, Any]) -> Iterator[Any]:
    for keyword in _MAPS:
        if isinstance(node.get(keyword), dict):
            yield from node[keyword].values()
    for keyword in (*_LISTS, "items"):
        if isinstance(node.get(keyword), list):
            yield from node[keyword]
    for keyword in _SINGLE:
        if isinstance(node.get(keyword), dict):
            yield node[keyword]
