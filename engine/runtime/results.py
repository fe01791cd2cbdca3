"""What a launch gave: drawn tokens and scores of prompt tokens."""

from collections.abc import Sequence as Seq

from msgspec import Struct

from engine.batch.plan import Launch
from engine.device.base import Samples
from engine.schedule.sequence import Sequence
from engine.types import TokenLogprobs


class Drawn(Struct, frozen=True):
    """The next token of a sequence, with its log probabilities where asked for.

    ended: its grammar allows nothing more. failure: why its grammar cannot go on (the token is
    then INVALID).
    """

    sequence: Sequence
    token: int
    logprobs: TokenLogprobs | None
    ended: bool = False
    failure: str | None = None


class Scored(Struct, frozen=True):
    """Log probabilities of the prompt tokens that follow a segment's rows, in order."""

    sequence: Sequence
    logprobs: tuple[TokenLogprobs, ...]


class LaunchResult(Struct, frozen=True):
    """One launch's results. ``seconds``: preparation, replay and sampling."""

    launch: Launch
    drawn: tuple[Drawn, ...]
    scored: tuple[Scored, ...]
    seconds: float


def token_logprobs(samples: Samples, rows: Seq[int], top_n: Seq[int]) -> list[TokenLogprobs]:
    """Turn some rows of a sampler's arrays into objects; ``top_n`` alternatives each."""
    index = list(rows)
    width = max(top_n, default=0)
    tokens = samples.tokens[index].tolist()
    logprobs = samples.logprobs[index].tolist()
    ids = samples.top_ids[index, :width].tolist()
    values = samples.top_logprobs[index, :width].tolist()
    return [
        TokenLogprobs(tokens[i], logprobs[i], tuple(zip(ids[i][:n], values[i][:n], strict=True)))
        for i, n in enumerate(top_n)
    ]
