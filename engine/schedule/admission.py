"""What the engine takes in: requests it can certainly serve, as sequences."""

from collections.abc import Iterable

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from engine.cache.kv import KVCache
from engine.errors import ContextLengthError, RequestError
from engine.schedule.sequence import Sequence
from engine.types import MAX_LOGPROBS, GenerationRequest, SamplingParams

MAX_BIAS = 1e6
_TOP = 2**31 - 1
RANGES: dict[str, tuple[float, float]] = {
    "max_tokens": (0, _TOP),
    "min_tokens": (0, _TOP),
    "temperature": (0, 1e6),
    "top_k": (0, _TOP),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "presence_penalty": (-1e6, 1e6),
    "frequency_penalty": (-1e6, 1e6),
    "repetition_penalty": (1e-6, 1e6),
    "logprobs": (0, MAX_LOGPROBS),
    "prompt_logprobs": (0, MAX_LOGPROBS),
}
"""Lowest and highest value of each number: what samplers compute with safely. The HTTP front has
narrower ones."""


class _Prompt(Struct, frozen=True):
    """Token ids, and the keys of their full blocks."""

    ids: NDArray[np.int32]
    keys: tuple[bytes, ...]


class Admission(Struct, frozen=True):
    """Checks requests against the model and the cache.

    vocab_size: ids that the model knows. eos_token_ids: its end tokens.
    """

    cache: KVCache
    vocab_size: int
    max_model_len: int
    eos_token_ids: frozenset[int]

    def sequences(self, requests: Iterable[GenerationRequest], arrival: int) -> list[Sequence]:
        """Turn requests into sequences, numbered from ``arrival`` on.

        Raises ContextLengthError when prompt and completion cannot ever fit, RequestError when
        the prompt is empty or an id or a setting is out of range. Requests that share a prompt
        (several choices) share what is derived from it.
        """
        prompts: dict[tuple[tuple[int, ...], str | None], _Prompt] = {}
        made: list[Sequence] = []
        for request in requests:
            name = (request.prompt_ids, request.cache_salt)
            prompt = prompts.get(name)
            if prompt is None:
                ids = self._prompt(request.prompt_ids)
                prompt = prompts[name] = _Prompt(ids, self.cache.keys(ids, request.cache_salt))
            made.append(self._sequence(request, prompt, arrival + len(made)))
        return made

    def _sequence(self, request: GenerationRequest, prompt: _Prompt, arrival: int) -> Sequence:
        sampling = request.sampling
        self._check_sampling(sampling)
        if (sampling.grammar is None) is not (request.grammar is None):
            raise RequestError("a grammar and its compiled form go together")
        self._check_length(len(prompt.ids), sampling.max_tokens)
        lookup = sampling.prompt_logprobs is None
        return Sequence(
            request,
            arrival,
            prompt.ids,
            self.cache.table(prompt.keys, len(prompt.ids), lookup),
            sampling.stop_token_ids | (frozenset() if sampling.ignore_eos else self.eos_token_ids),
        )

    def _prompt(self, ids: tuple[int, ...]) -> NDArray[np.int32]:
        if not ids:
            raise RequestError("the prompt is empty: at least one token is needed")
        if min(ids) < 0 or max(ids) >= self.vocab_size:
            raise RequestError(f"prompt token ids must lie in 0..{self.vocab_size - 1}")
        return np.array(ids, np.int32)

    def _check_length(self, prompt: int, max_tokens: int) -> None:
        total = prompt + max_tokens
        limit, what = self.max_model_len, "the context length"
        if self.cache.capacity_tokens < limit:
            limit, what = self.cache.capacity_tokens, "the capacity of the key/value cache"
        if total > limit:
            raise ContextLengthError(
                f"{what} is {limit} tokens, but {prompt} tokens of prompt and {max_tokens} of "
                f"completion were asked for ({total} in total)"
            )

    def _check_sampling(self, sampling: SamplingParams) -> None:
        for name, (low, high) in RANGES.items():
            value = getattr(sampling, name)
            if value is not None and not low <= value <= high:  # written so that NaN fails
                raise RequestError(f"{name} must lie in {low}..{high}")
        if sampling.min_tokens > sampling.max_tokens:
            raise RequestError("min_tokens must not be above max_tokens")
        for name in ("logit_bias", "stop_token_ids"):
            if any(not 0 <= token < self.vocab_size for token in getattr(sampling, name)):
                raise RequestError(f"{name}: ids must lie in 0..{self.vocab_size - 1}")
        if any(not -MAX_BIAS <= bias <= MAX_BIAS for bias in sampling.logit_bias.values()):
            raise RequestError(f"logit_bias: values must lie in {-MAX_BIAS}..{MAX_BIAS}")
