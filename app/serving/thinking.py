"""Turning a model's thinking on and off, where an endpoint has a field of its own for it."""

import re
from typing import Any

from app.errors import bad_field
from app.serving.context import ServingContext
from app.serving.reading import reasoning_parser
from app.serving.rules import may_reason

_SWITCHES = {
    "enable_thinking": re.compile(r"\benable_thinking\b"),
    "thinking": re.compile(r"\bthinking is (?:not )?defined\b"),
}
"""Variables that chat templates turn thinking on and off with, and how a template shows it."""


def template_switch(
    context: ServingContext, wanted: bool | None, param: str, *, default: bool | None = None
) -> dict[str, Any]:
    """The variables of the chat template that make the model think, or not.

    wanted: None is ``default`` where the model can be told, and None again leaves it to the model.
    Raises ApiError (400, param ``param``) when the model cannot do what is wanted.
    """
    source = context.template_source
    thinks = may_reason(context) and reasoning_parser(context) is not None
    switch = next((name for name, sign in _SWITCHES.items() if sign.search(source)), None)
    if wanted and not thinks:
        raise bad_field(param, "is not supported: this model does not think")
    if wanted is False and thinks and switch is None:
        raise bad_field(param, "cannot be turned off: this model always thinks")
    told = default if wanted is None else wanted
    return {} if switch is None or told is None or not thinks else {switch: told}
