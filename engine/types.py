"""Types that cross the engine's front: requests in, token deltas out."""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, Protocol

from msgspec import Struct

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Speculative = Literal["off", "ngram", "mtp"]
"""Methods of speculative decoding."""
MAX_LOGPROBS = 20
"""Alternatives that may be asked for per token."""


GrammarKind = Literal["json_object", "json_schema", "regex", "choice", "lark"]
"""Ways to say what a text must look like."""


class FinishReason(StrEnum):
    """Why a sequence ended. ABORT is never shown to a client as a normal end."""

    STOP = "stop"  # an end token, a stop token id, or a grammar that allows nothing more
    LENGTH = "length"  # max_tokens or the context length
    ABORT = "abort"
    ERROR = "error"


class GrammarSpec(Struct, frozen=True, eq=False):
    """What the text of a sequence must look like, as its author wrote it.

    text: by kind, a JSON schema as JSON text, a regular expression that matches the whole text,
    a JSON array of strings to choose from, or a Lark grammar (llguidance's dialect) with a rule
    ``start``; empty for json_object. after: the text that the grammar begins behind (the end
    marker of a model's reasoning); what precedes it is free. param: the request field that errors
    name; specs that differ in nothing else are equal.
    """

    kind: GrammarKind
    text: str = ""
    after: str | None = None
    param: str | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GrammarSpec) and self._content == other._content

    def __hash__(self) -> int:
        return hash(self._content)

    @property
    def _content(self) -> tuple[GrammarKind, str, str | None]:
        return self.kind, self.text, self.after


class GrammarMatcher(Protocol):
    """Where one sequence is in its grammar."""

    @property
    def ended(self) -> bool:
        """Whether the text is complete and nothing more may follow."""
        ...

    def fill(self, mask: "NDArray[np.uint32]") -> str | None:
        """Write the ids that may come next, one bit each, lowest bit first.

        End tokens are among them where the text may end. Returns why the grammar cannot go on
        (a limit was hit), else None.
        """
        ...

    def accept(self, token_id: int) -> None:
        """Take a drawn token in."""
        ...


class CompiledGrammar(Protocol):
    """A grammar ready for use by any number of sequences."""

    @property
    def mask_words(self) -> int:
        """32-bit words of a mask."""
        ...

    def matcher(self, output_ids: Sequence[int]) -> GrammarMatcher:
        """A matcher behind the tokens that a sequence has generated so far."""
        ...


class SamplingParams(Struct, frozen=True):
    """How one sequence is sampled. ``seed`` is always set (the front draws one if needed).

    Draws depend on (seed, position) alone. top_k 0, top_p 1, min_p 0, penalties 0 (repetition: 1)
    disable. grammar: ids that it does not allow are never drawn. logprobs: None = none wanted,
    0..20 = that many alternatives beside the chosen token; values are log-softmax of the model's
    raw logits, before temperature, penalties, bias and grammar.
    """

    max_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = {}
    seed: int = 0
    min_tokens: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    grammar: GrammarSpec | None = None


class GenerationRequest(Struct, frozen=True):
    """One sequence to generate (n > 1 is several requests). ``prompt_ids`` is not empty.

    priority: lower values are admitted first and preempted last; ties go by arrival.
    grammar: ``sampling.grammar``, compiled (``engine.grammar.compiler``); both or none are set.
    """

    id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    cache_salt: str | None = None
    priority: int = 0
    grammar: CompiledGrammar | None = None


class TokenLogprobs(Struct, frozen=True):
    """One token's log probability and its alternatives, best first: (token id, logprob)."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class TokenDelta(Struct, frozen=True):
    """What one step added to a sequence. ``finish_reason`` is set on the last delta only.

    ``token_ids`` may be empty (max_tokens = 0, abort). The end token that stopped a sequence is
    included, and counted. prompt_logprobs: on the first delta, one entry per prompt token (the
    first is None), when asked for. cached_tokens: prompt tokens that the prefix cache gave.
    """

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    cached_tokens: int = 0
    error: str | None = None


class EngineState(StrEnum):
    """What the engine can do now."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


class ModelInfo(Struct, frozen=True):
    """What the front needs to know of the loaded model. vocab_size: ids that may be sampled."""

    id: str
    context_length: int
    vocab_size: int
    eos_token_ids: frozenset[int]
    core_digest: str
    created: int


class TokenStream(Protocol):
    """The deltas of one sequence, in order; ends after the one with a finish reason.

    ``aclose`` before the end aborts the sequence; it is idempotent, and never blocks.
    """

    def __aiter__(self) -> "TokenStream": ...

    async def __anext__(self) -> TokenDelta: ...

    def follow(self, sink: Callable[[TokenDelta], None]) -> None:
        """Give every delta to ``sink``, on the event loop, instead of being iterated."""
        ...

    async def aclose(self) -> None: ...


class EngineClient(Protocol):
    """The asyncio face of the engine (``engine.client.Engine`` is the real one)."""

    @property
    def state(self) -> EngineState: ...

    @property
    def model(self) -> ModelInfo: ...

    def submit(self, requests: Sequence[GenerationRequest]) -> Sequence[TokenStream]:
        """Queue the requests together; one stream each, in order.

        Closing a stream before its end aborts that sequence. Raises QueueFullError when the
        bounded queue cannot take them all, ContextLengthError when one cannot ever be served.
        """
        ...

    def abort(self, request_ids: Sequence[str]) -> None:
        """End these sequences now and free their blocks; unknown ids are ignored."""
        ...

    def describe(self) -> dict[str, Any]:
        """The ``/v1/config`` object, without ``version``."""
        ...

    async def switch(self, mixed_prefill: bool | None) -> dict[str, Any]:
        """Change the graph selection between two steps; return the new ``describe()``.

        Raises LiveSwitchOffError, EngineUnavailableError or what loading that selection raises;
        then nothing has changed.
        """
        ...

    async def drain(self, seconds: float) -> None:
        """Refuse new work, let running sequences finish for up to ``seconds``, then abort."""
        ...

    async def close(self) -> None: ...
