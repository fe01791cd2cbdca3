"""From a grammar as its author wrote it to the form that llguidance compiles."""

import json
import re
from collections.abc import Callable
from typing import Any

from llguidance.gbnf_to_lark import gbnf_to_lark

from engine.grammar.limits import (
    MAX_CHOICES,
    MAX_GBNF,
    MAX_PATTERN,
    MAX_RULES,
    MAX_TEXT,
    check_length,
)
from engine.grammar.schema import OPTIONS, check_schema
from engine.types import GrammarKind, GrammarSpec

Part = dict[str, Any]
"""One grammar of llguidance's container: a JSON schema or a Lark text."""

_EMBEDDED = re.compile(r"%json\s*(?=\{)")


def grammar_source(spec: GrammarSpec, marker: str | None) -> str:
    """Return llguidance's container of grammars for ``spec``.

    marker: ``spec.after`` in Lark's notation. Raises ValueError with the reason.
    """
    body = _READERS[spec.kind](spec.text)
    parts = [body] if marker is None else [_behind(marker), {"name": "body", **body}]
    return json.dumps({"grammars": parts})


def marker_text(text: str) -> str:
    """A rule for free text up to and with ``text``, as an attribute of Lark's rules."""
    return f"reasoning[stop={json.dumps(text)}]: /(?s:.*)/"


def marker_token(token_id: int) -> str:
    """A rule for free text up to and with a control token."""
    return f"reasoning: /(?s:.*)/ <[{token_id}]>"


def _behind(marker: str) -> Part:
    """Free text with the marker, up to two line breaks, then the grammar ``body``."""
    return {"lark_grammar": f"start: reasoning gap @body\n{marker}\ngap: /\\n{{0,2}}/"}


def _json_object(_: str) -> Part:
    return _bounded({"type": "object"})


def _json_schema(text: str) -> Part:
    return _bounded(check_schema(text))


def _bounded(schema: Any) -> Part:
    return {"json_schema": _with_options(schema)}


def _with_options(schema: Any) -> Any:
    """The schema with our compiler options; ``true`` and ``false`` cannot hold any."""
    if schema is False:
        raise ValueError("allows no value")
    return {**({} if schema is True else schema), "x-guidance": dict(OPTIONS)}


def _regex(text: str) -> Part:
    check_length(text, MAX_PATTERN)
    return {"lark_grammar": f"start: {_slashed(text)}"}


def _slashed(pattern: str) -> str:
    """A regular expression between slashes, as Lark writes it."""
    escaped = re.sub(r"(?s)\\(.)|(/)", lambda m: m[0] if m[2] is None else "\\/", pattern)
    return "/" + escaped.replace("\n", "\\n").replace("\r", "\\r") + "/"


def _choice(text: str) -> Part:
    choices = json.loads(text)
    if not 1 <= len(choices) <= MAX_CHOICES:
        raise ValueError(f"must hold 1 to {MAX_CHOICES} strings")
    check_length(text, MAX_TEXT)
    return {"lark_grammar": "start: " + " | ".join(json.dumps(choice) for choice in choices)}


def _lark(text: str) -> Part:
    check_length(text, MAX_TEXT)
    bounded, outside = _bound_embedded(_from_gbnf(text) if _is_gbnf(text) else text)
    if sum(":" in line for line in outside.splitlines()) > MAX_RULES:
        raise ValueError(f"has more than {MAX_RULES} rules")
    return {"lark_grammar": bounded}


def _is_gbnf(text: str) -> bool:
    """llama.cpp's notation: rules with ``::=``, the first of them ``root``."""
    return "::=" in text and re.search(r"(?m)^\s*start\s*(\[.*\])?\s*:", text) is None


def _from_gbnf(text: str) -> str:
    check_length(text, MAX_GBNF)
    try:
        return gbnf_to_lark(text)
    except Exception as error:  # the converter raises bare Exception for some faults
        raise ValueError(f"is not valid: {error}") from None


def _bound_embedded(text: str) -> tuple[str, str]:
    """Check the schemas that a Lark text embeds, and bound their white space.

    Returns the text with them, and what is outside of them.
    """
    decoder = json.JSONDecoder()
    whole, outside, at = "", "", 0
    while (found := _EMBEDDED.search(text, at)) is not None:
        try:
            _, end = decoder.raw_decode(text, found.end())
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"embeds a schema that is not valid JSON: {error}") from None
        schema = check_schema(text[found.end() : end])
        whole += text[at : found.end()] + json.dumps(_with_options(schema))
        outside += text[at : found.end()]
        at = end
    return whole + text[at:], outside + text[at:]


_READERS: dict[GrammarKind, Callable[[str], Part]] = {
    "json_object": _json_object,
    "json_schema": _json_schema,
    "regex": _regex,
    "choice": _choice,
    "lark": _lark,
}
