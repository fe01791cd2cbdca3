"""Which family's form a model writes calls in: the registry of the modules beside this one."""

from collections.abc import Callable
from importlib import import_module

from msgspec import Struct

from app.serving.reader import call_id
from app.serving.tools.sink import MakeParser

DEFAULT = "hermes"
"""For templates that do not know tools, and for those whose form no other family claims."""

SIGNS = {
    "mistral": ("[TOOL_CALLS]",),
    "llama3_json": ("<|python_tag|>", '"parameters": dictionary of'),
    "pythonic": ("[func_name1(", "[func1("),
    "hermes": ("<tool_call>",),
}
"""Family (the name of a module) -> what its chat templates hold; those first that say more."""


class Family(Struct, frozen=True):
    """How calls are read. marks: texts that may be special tokens and must be seen."""

    name: str
    parser: MakeParser
    marks: tuple[str, ...]
    new_id: Callable[[], str]


def detect(template: str) -> str:
    """The name of the family whose form a chat template asks for."""
    for name, signs in SIGNS.items():
        if any(sign in template for sign in signs):
            return name
    return DEFAULT


def load(name: str) -> Family:
    """The family of a name in ``SIGNS``."""
    if name not in SIGNS:
        raise ValueError(f"there is no family {name!r}")
    module = import_module(f"app.serving.tools.{name}")  # most servers need one of them, or none
    return Family(name, module.parser, module.MARKS, getattr(module, "new_id", call_id))
