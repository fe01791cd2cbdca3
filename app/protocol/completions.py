"""Bodies of ``/v1/completions``: request, prompt forms, refused fields."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from app.protocol.body import Refused
from app.protocol.sampling import MAX_CHOICES, REFUSED, Alternatives, GenerationFields

MAX_PROMPTS = 1024
MAX_PROMPT_IDS = 1 << 20
"""Token ids of all prompts of a request: each is looked at several times."""

Prompt = str | tuple[int, ...]
"""One prompt: text, or token ids."""


def parse_prompts(value: object) -> tuple[Prompt, ...]:
    """The prompts of a request: a string, an array of them, token ids, or an array of those.

    Raises ValueError with the reason.
    """
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        raise ValueError("must be a string, an array of strings, or token ids")
    if not value:
        raise ValueError("must not be empty")
    if _count_ids(value) > MAX_PROMPT_IDS:
        raise ValueError(f"must hold at most {MAX_PROMPT_IDS} token ids")
    if _are_ids(value):
        return (tuple(value),)
    if len(value) > MAX_PROMPTS:
        raise ValueError(f"must hold at most {MAX_PROMPTS} prompts")
    if all(isinstance(item, str) for item in value):
        return tuple(value)
    if all(isinstance(item, list) and _are_ids(item) for item in value):
        return tuple(tuple(item) for item in value)
    raise ValueError("must hold only strings, only token ids, or only arrays of token ids")


def _are_ids(items: list[Any]) -> bool:
    """True when every item is an integer; a bool is none."""
    return set(map(type, items)) <= {int}


def _count_ids(items: list[Any]) -> int:
    """How many token ids an array of them, or of arrays of them, holds at most."""
    if isinstance(items[0], list):
        return sum(len(item) for item in items if isinstance(item, list))
    return len(items) if isinstance(items[0], int) else 0


_PROMPT_SCHEMA = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}},
        {"type": "array", "items": {"type": "integer"}},
        {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
    ]
}


class CompletionRequest(GenerationFields):
    """The body of a text completion."""

    prompt: Annotated[Any, BeforeValidator(parse_prompts), Field(json_schema_extra=_PROMPT_SCHEMA)]
    logprobs: Alternatives | None = None
    echo: bool | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    add_special_tokens: bool | None = None

    @property
    def prompts(self) -> tuple[Prompt, ...]:
        """The checked prompts."""
        prompts: tuple[Prompt, ...] = self.prompt
        return prompts


COMPLETION_REFUSED: dict[str, Refused] = {
    **REFUSED,
    "suffix": Refused(("",)),
    "prompt_embeds": Refused(),
    "max_completion_tokens": Refused((), "is a field of chat completions; use max_tokens"),
}
