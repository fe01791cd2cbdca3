"""What the engine takes in: requests it can certainly serve, as sequences."""

from dataclasses import dataclass

import numpy as np

from engine.cache.kv import KVCache
from engine.errors import ContextLengthError, RequestError
from engine.schedule.sequence import Sequence
from engine.types import GenerationRequest, SamplingParams

MAX_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class Admission:
    """Checks requests against the model and the cache.

    vocab_size: ids that the model knows. eos_token_ids: its end tokens.
    """

    cache: KVCache
    vocab_size: int
    max_model_len: int
    eos_token_ids: frozenset[int]

    def sequence(self, request: GenerationRequest, arrival: int) -> Sequence:
        """Turn a request into a sequence.

        Raises ContextLengthError when prompt and completion cannot ever fit, RequestError when
        the prompt is empty or an id or a setting is out of range.
        """
        prompt = np.array(request.prompt_ids, np.int64)
        self._check_prompt(prompt)
        self._check_length(len(prompt), request.sampling.max_tokens)
        self._check_sampling(request.sampling)
        sampling = request.sampling
        ids = prompt.astype(np.int32)
        return Sequence(
            request,
            arrival,
            ids,
            self.cache.table(ids, request.cache_salt, lookup=sampling.prompt_logprobs is None),
            sampling.stop_token_ids | (frozenset() if sampling.ignore_eos else self.eos_token_ids),
        )

    def _check_prompt(self, prompt: np.ndarray) -> None:
        if prompt.size == 0:
            raise RequestError("the prompt is empty: at least one token is needed")
        if prompt.min() < 0 or prompt.max() >= self.vocab_size:
            raise RequestError(f"prompt token ids must lie in 0..{self.vocab_size - 1}")

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
        if sampling.max_tokens < 0 or sampling.min_tokens < 0:
            raise RequestError("max_tokens and min_tokens must not be negative")
        if any(not 0 <= token < self.vocab_size for token in sampling.logit_bias):
            raise RequestError(f"logit_bias ids must lie in 0..{self.vocab_size - 1}")
        for name in ("logprobs", "prompt_logprobs"):
            wanted = getattr(sampling, name)
            if wanted is not None and not 0 <= wanted <= MAX_LOGPROBS:
                raise RequestError(f"{name} must lie in 0..{MAX_LOGPROBS}")
