"""Tools that a request offers, and which of them the model is to call."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Mode = Literal["none", "auto", "required", "named"]


@dataclass(frozen=True, slots=True)
class FunctionTool:
    """A function that the model may call. ``parameters``: the JSON schema of its arguments."""

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object"})
    strict: bool = False

    def as_json(self) -> dict[str, Any]:
        """The tool as chat templates expect it."""
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        function["parameters"] = self.parameters
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """none: no call; auto: as the model likes; required: at least one; named: ``name`` alone."""

    mode: Mode = "auto"
    name: str | None = None

    @property
    def forced(self) -> bool:
        """Whether there must be a call."""
        return self.mode in ("required", "named")


AUTO = ToolChoice()
