"""Request fields that chat and text completions share: sampling, length, stops, extensions."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from app.protocol.body import Refused, RequestModel
from app.protocol.structured import StructuredFields
from engine.types import MAX_LOGPROBS

MAX_CHOICES = 128
MAX_STOPS = 16
MAX_STOP_LENGTH = 1024
MAX_STOP_IDS = 64

MIN_REPETITION = 1e-6
"""Least repetition penalty; logits are divided by it, and must stay finite."""

Seed = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
Temperature = Annotated[float, Field(ge=0, le=2)]
TopP = Annotated[float, Field(gt=0, le=1)]
TopK = Annotated[int, Field(ge=-1, le=2**31 - 1)]
MinP = Annotated[float, Field(ge=0, le=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
RepetitionPenalty = Annotated[float, Field(ge=MIN_REPETITION, le=10)]
Alternatives = Annotated[int, Field(ge=0, le=MAX_LOGPROBS)]
CacheSalt = Annotated[str, Field(min_length=1, max_length=256)]
Priority = Annotated[int, Field(ge=-(2**31), le=2**31 - 1)]


def stop_strings(value: object) -> tuple[str, ...]:
    """The stop strings of a request: null and [] are none; at most 16, none empty.

    Raises ValueError with the reason.
    """
    if value is None:
        return ()
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise ValueError("must be a string or an array of strings")
    if len(items) > MAX_STOPS:
        raise ValueError(f"must hold at most {MAX_STOPS} strings")
    if any(not item for item in items):
        raise ValueError("must not hold an empty string")
    if any(len(item) > MAX_STOP_LENGTH for item in items):
        raise ValueError(f"must hold strings of at most {MAX_STOP_LENGTH} characters")
    return tuple(dict.fromkeys(items))


_STOP_SCHEMA = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}, "maxItems": MAX_STOPS},
        {"type": "null"},
    ]
}


class StreamOptions(RequestModel):
    """Options of a streamed answer."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class GenerationFields(StructuredFields):
    """Fields of both generation endpoints. None always means: not given."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    max_tokens: Annotated[int, Field(ge=0)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    seed: Seed | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    # Entries are checked in serving/sampling.py: ids need the vocabulary.
    logit_bias: dict[str, Any] | None = None
    stop: Annotated[Any, BeforeValidator(stop_strings), Field(json_schema_extra=_STOP_SCHEMA)] = (
        None
    )
    user: str | None = None
    service_tier: Literal["auto", "default"] | None = None
    store: Literal[False] | None = None

    top_k: TopK | None = None
    min_p: MinP | None = None
    repetition_penalty: RepetitionPenalty | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    ignore_eos: bool | None = None
    stop_token_ids: Annotated[list[int], Field(max_length=MAX_STOP_IDS, fail_fast=True)] | None = (
        None
    )
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    prompt_logprobs: Alternatives | None = None
    cache_salt: CacheSalt | None = None
    priority: Priority | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """The checked stop strings."""
        stops: tuple[str, ...] = self.stop or ()
        return stops


REFUSED: dict[str, Refused] = {
    "guided_whitespace_pattern": Refused(),
    "grammar": Refused(("",)),
    "json_schema": Refused(),
    "use_beam_search": Refused((False,)),
    "length_penalty": Refused((1,)),
    "early_stopping": Refused((False,)),
    "bad_words": Refused(([],)),
    "allowed_token_ids": Refused(),
    "logits_processors": Refused(([],)),
    "truncate_prompt_tokens": Refused(),
    "typical_p": Refused((1,)),
    "tfs_z": Refused((1,)),
    "top_a": Refused((0,)),
    "mirostat": Refused((0,)),
    "dry_multiplier": Refused((0,)),
    "xtc_probability": Refused((0,)),
    "lora": Refused(([],)),
}
"""Fields of OpenAI and of other servers that change an answer and that are not supported."""
