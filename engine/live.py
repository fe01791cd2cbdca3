"""A sequence being served, with its stream and its times."""

from msgspec import Struct, field

from engine.schedule.sequence import Sequence
from engine.stream import DeltaStream
from engine.types import FinishReason, TokenDelta, TokenLogprobs


class Live(Struct, eq=False):
    """What is kept per sequence. Times are ``perf_counter`` seconds; 0.0: not yet.

    The event loop alone touches ``stream``, ``last_token`` and ``ended`` (what steps still give
    is dropped); the chain alone what changes in ``sequence``, ``started`` (it has run) and
    ``scores``: log probabilities of prompt tokens 1.. so far, when asked for.
    """

    sequence: Sequence
    stream: DeltaStream
    arrived: float
    started: bool = False
    last_token: float = 0.0
    ended: bool = False
    scores: list[TokenLogprobs] = field(default_factory=list)

    @property
    def id(self) -> str:
        return self.sequence.request.id

    def finish_reason(self) -> FinishReason | None:
        """Why the sequence ends with the tokens it has, if it does."""
        sequence = self.sequence
        output = sequence.output
        if output and output[-1] in sequence.stops:
            return FinishReason.STOP
        full = len(output) == sequence.request.sampling.max_tokens
        return FinishReason.LENGTH if full else None

    def delta(
        self,
        tokens: tuple[int, ...],
        logprobs: TokenLogprobs | None,
        reason: FinishReason | None,
    ) -> TokenDelta:
        """Build a step's delta; the first one carries the prompt's log probabilities."""
        sequence = self.sequence
        if logprobs is None and reason is None and len(sequence.output) > len(tokens):
            return TokenDelta(tokens, cached_tokens=sequence.cached)  # nearly always
        first = len(sequence.output) == len(tokens)
        wants = self.sequence.request.sampling.prompt_logprobs is not None
        return TokenDelta(
            tokens,
            () if logprobs is None else (logprobs,),
            reason,
            (None, *self.scores) if first and wants else None,
            self.sequence.cached,
        )


def ending(reason: FinishReason, error: str | None = None) -> TokenDelta:
    """The last delta of a sequence that ends without a token."""
    return TokenDelta(finish_reason=reason, error=error)
