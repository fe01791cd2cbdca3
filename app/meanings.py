"""What request fields mean, from ``protocol/meanings.toml``: for the API's descriptions alone."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from msgspec import Struct
from pydantic import BaseModel

FILE = Path(__file__).parent / "protocol" / "meanings.toml"


class Meaning(Struct, frozen=True):
    """A field in words. Empty ``default`` or ``off``: none is worth telling."""

    text: str
    origin: str
    default: str = ""
    off: str = ""
    limits: str = ""

    @property
    def sentence(self) -> str:
        """All of it in one line."""
        parts = [self.text, self.limits]
        parts += [f"default: {self.default}"] if self.default else []
        parts += [f"off: {self.off}"] if self.off else []
        return "; ".join(part for part in parts if part) + f" ({self.origin})"


class Meanings:
    """The meanings of the fields of all models."""

    def __init__(self, tables: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
        self._tables = tables

    @classmethod
    def load(cls) -> "Meanings":
        """Read the package's own file."""
        return cls(tomllib.loads(FILE.read_text(encoding="utf-8")))

    def of(self, model: type[BaseModel], name: str) -> Meaning:
        """The meaning of field ``name`` (as JSON has it), told by ``model`` or a model below it.

        Raises KeyError for a field that nobody has described.
        """
        for cls in model.__mro__:
            table = self._table(cls)
            if name in table:
                return Meaning(**{"origin": table.get("_origin", ""), **table[name]})
        raise KeyError(f"{key(model)} has no meaning for {name!r} in {FILE.name}")

    def names(self) -> set[tuple[str, str]]:
        """Every (model, field) that is described; models as ``key`` names them."""
        return {
            (f"{module}.{name}", field)
            for module, models in self._tables.items()
            for name, fields in models.items()
            for field in fields
            if not field.startswith("_")
        }

    def _table(self, cls: type) -> Mapping[str, Any]:
        module, _, name = key(cls).partition(".")
        return self._tables.get(module, {}).get(name, {})


def key(cls: type) -> str:
    """How a model is called in the file: its module's last name and its own."""
    return f"{cls.__module__.rpartition('.')[2]}.{cls.__name__}"


def field_names(model: type[BaseModel]) -> dict[str, str]:
    """The fields of a model: the name in JSON -> the name in Python."""
    return {field.alias or name: name for name, field in model.model_fields.items()}


def nested_models(model: type[BaseModel]) -> list[type[BaseModel]]:
    """``model`` and all models within it, each once, in the order of its fields."""
    found: dict[type[BaseModel], None] = {}
    _collect(model, found)
    return list(found)


def _collect(annotation: Any, found: dict[type[BaseModel], None]) -> None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        if annotation not in found:
            found[annotation] = None
            for field in annotation.model_fields.values():
                _collect(field.annotation, found)
        return
    for member in get_args(annotation):
        _collect(member, found)
