"""The Jinja environment of chat templates: what Hugging Face templates use, and nothing more.

Names follow the documentation of chat templates in Transformers: ``raise_exception``,
``strftime_now``, ``tojson`` without HTML escapes, ``{% generation %}``, loop controls, trimmed
blocks. Templates come with checkpoints, so they run in Jinja's immutable sandbox.
"""

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

from jinja2 import Environment, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

LARGEST_TEXT = 1 << 24
"""Longest text (characters) or list that a template may make by repetition or padding."""


class RaisedByTemplate(TemplateError):
    """The template called ``raise_exception``; the message is its own sentence."""


class _GenerationTag(Extension):
    """``{% generation %} ... {% endgeneration %}`` marks assistant text for training: no effect."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's interface)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Sandbox with bounds on the operators and methods that make much out of little."""

    intercepted_binops = frozenset(["*", "**"])

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and (abs(left) > LARGEST_TEXT or abs(right) > 64):
            raise SecurityError("a power is too large")
        if operator == "*":
            _check_repetition(left, right)
            _check_repetition(right, left)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        if getattr(obj, "__name__", "") in ("center", "ljust", "rjust", "zfill", "expandtabs"):
            _check_widths(args, kwargs)
        return super().call(context, obj, *args, **kwargs)


def build_environment(now: Callable[[], datetime]) -> Environment:
    """Return the environment; ``now`` is the clock behind ``strftime_now``."""
    environment = TemplateEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, LoopControlExtension]
    )
    del environment.globals["lipsum"]
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: now().strftime(form)
    return environment


def _check_repetition(sequence: Any, count: Any) -> None:
    repeats = isinstance(sequence, str | list | tuple) and isinstance(count, int)
    if repeats and len(sequence) * count > LARGEST_TEXT:
        raise SecurityError("a repeated text or list is too long")


def _check_widths(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if any(isinstance(v, int) and v > LARGEST_TEXT for v in (*args, *kwargs.values())):
        raise SecurityError("a padded text is too long")


def _raise_exception(message: object) -> None:
    raise RaisedByTemplate(str(message))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
