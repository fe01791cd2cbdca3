"""The options of ``flare run``, made from the settings model: one option for each field."""

import argparse
from collections.abc import Mapping
from typing import Any, cast, get_args

from pydantic.fields import FieldInfo

from app.commands.arguments import Parser
from app.settings import Settings

DESCRIPTION = """\
Serve a core over the OpenAI API. Nothing is traced, compiled or tuned: starting is loading.

Every option is also a variable, FLARE_ and the name in capitals (--max-queue: FLARE_MAX_QUEUE).
An option wins over a variable, a variable over the file .env, .env over the default."""
EXAMPLES = """\
  flare run                                 the default model on 127.0.0.1:8000
  flare run my.core --port 0                a free port, printed at the start
  flare run my.core --mixed-prefill         decode and prefill rows in one launch
  flare run my.core --no-mixed-prefill      separate launches, from the same bytes
  flare run --host 0.0.0.0 --api-keys KEY   open to the network, with a key"""
TITLES = {
    "core": "core and selection",
    "server": "server",
    "limits": "limits",
    "engine": "engine",
    "access": "access",
    "logs": "logs",
}


def make_parser() -> Parser:
    """The parser; only what was given is in the parsed arguments, under the field's name."""
    parser = Parser("run", DESCRIPTION, EXAMPLES)
    fields: Mapping[str, FieldInfo] = Settings.model_fields
    parser.add_argument("core", nargs="?", metavar="CORE", help=help_text(fields["core"]))
    groups = {name: parser.add_argument_group(title) for name, title in TITLES.items()}
    for name, field in fields.items():
        if name != "core":
            extra = cast(dict[str, Any], field.json_schema_extra)
            _add_option(groups[extra["group"]], name, field)
    return parser


def help_text(field: FieldInfo) -> str:
    """The setting's text and its default, with argparse's percent signs doubled."""
    default = field.default
    if default in (None, ()):
        return str(field.description).replace("%", "%%")
    shown = str(default).lower() if isinstance(default, bool) else str(default).removesuffix(".0")
    return f"{field.description} (default: {shown})".replace("%", "%%")


def _add_option(group: Any, name: str, field: FieldInfo) -> None:
    option = "--" + name.replace("_", "-")
    if is_flag(field):
        group.add_argument(option, action=argparse.BooleanOptionalAction, help=help_text(field))
    else:
        metavar = name.rpartition("_")[2].upper()
        group.add_argument(option, metavar=metavar, help=help_text(field))


def is_flag(field: FieldInfo) -> bool:
    """Whether the field is a bool, or a bool or None."""
    kinds = (field.annotation, *get_args(field.annotation))
    return bool in (getattr(kind, "__origin__", kind) for kind in kinds)
