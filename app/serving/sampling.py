"""From request fields to the engine's sampling parameters, with range checks by name."""

import secrets
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from app.errors import bad_field
from app.protocol.sampling import GenerationFields
from engine.text.info import GenerationDefaults
from engine.types import GrammarSpec, SamplingParams

MAX_BIASES = 1024
_SEED_MASK = 2**63 - 1
_SEED_STRIDE = 0x9E3779B97F4A7C15  # 2**64 / golden ratio: seeds of choices far apart


def sampling_params(
    request: GenerationFields,
    *,
    max_tokens: int,
    vocab_size: int,
    defaults: GenerationDefaults,
    logprobs: int | None,
    prompt_logprobs: int | None = None,
    grammar: GrammarSpec | None = None,
) -> SamplingParams:
    """The parameters of a request's first choice.

    ``defaults`` are the model's own for fields that the request leaves out.
    Raises ApiError (400) naming the field at fault.
    """
    top_k = _given(request.top_k, defaults.top_k, 0)
    min_tokens = request.min_tokens or 0
    if min_tokens > max_tokens:
        raise bad_field(
            "min_tokens", f"is {min_tokens}, more than the {max_tokens} tokens to generate"
        )
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=_given(request.temperature, defaults.temperature, 1.0),
        top_k=max(0, int(top_k)),
        top_p=_given(request.top_p, defaults.top_p, 1.0),
        min_p=_given(request.min_p, defaults.min_p, 0.0),
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        repetition_penalty=_given(request.repetition_penalty, defaults.repetition_penalty, 1.0),
        logit_bias=logit_bias(request.logit_bias, vocab_size),
        seed=first_seed(request.seed),
        min_tokens=min_tokens,
        stop_token_ids=stop_token_ids(request.stop_token_ids, vocab_size),
        ignore_eos=bool(request.ignore_eos),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        grammar=grammar,
    )


def first_seed(asked: int | None) -> int:
    """The seed of a prompt's first choice: a fresh one where none is asked for."""
    return choice_seed(secrets.randbits(63) if asked is None else asked, 0)


def for_choice(params: SamplingParams, index: int) -> SamplingParams:
    """The same parameters for choice ``index`` of a request: only the seed differs."""
    return replace(params, seed=choice_seed(params.seed, index)) if index else params


def choice_seed(seed: int, index: int) -> int:
    """The seed of one choice, in 0 .. 2**63 - 1; choice 0 of a seed >= 0 keeps it."""
    return (seed + index * _SEED_STRIDE) & _SEED_MASK


def logit_bias(raw: Mapping[str, Any] | None, vocab_size: int) -> dict[int, float]:
    """Token id -> bias. Ids must be in the vocabulary, values in -100 .. 100."""
    if not raw:
        return {}
    if len(raw) > MAX_BIASES:
        raise bad_field("logit_bias", f"must hold at most {MAX_BIASES} entries")
    return {_bias_id(key, vocab_size): _bias_value(value) for key, value in raw.items()}


def stop_token_ids(raw: list[int] | None, vocab_size: int) -> frozenset[int]:
    """Ids that end a sequence; all in the vocabulary."""
    if any(not 0 <= token < vocab_size for token in raw or ()):
        raise bad_field("stop_token_ids", f"must hold token ids from 0 to {vocab_size - 1}")
    return frozenset(raw or ())


def _bias_id(key: str, vocab_size: int) -> int:
    token = int(key) if key.isascii() and key.isdecimal() and len(key) <= 10 else -1
    if not 0 <= token < vocab_size:
        raise bad_field("logit_bias", f"must have token ids from 0 to {vocab_size - 1} as keys")
    return token


def _bias_value(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not -100 <= value <= 100:
        raise bad_field("logit_bias", "must have numbers from -100 to 100 as values")
    return float(value)


def _given(asked: float | None, model: float | None, otherwise: float) -> Any:
    """The request's value, else the model's, else the field's own default."""
    if asked is not None:
        return asked
    return otherwise if model is None else model
