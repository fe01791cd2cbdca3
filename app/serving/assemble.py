"""One choice of an answer: token deltas in, text pieces and their log probabilities out."""

from dataclasses import dataclass
from typing import Protocol

from engine.types import FinishReason, TokenDelta, TokenLogprobs


class Detokenizer(Protocol):
    """Turns the token ids of one sequence into text, holding back incomplete characters."""

    def push(self, ids: tuple[int, ...]) -> str: ...

    def flush(self) -> str: ...


class Matcher(Protocol):
    """Finds stop strings in growing text, holding back what may become one."""

    def push(self, text: str) -> tuple[str, bool]: ...

    def flush(self) -> str: ...


@dataclass(frozen=True, slots=True)
class TokenEntry:
    """A token's log probability and where its text starts in the choice's text (characters)."""

    logprobs: TokenLogprobs
    start: int


@dataclass(frozen=True, slots=True)
class Piece:
    """What one delta adds to choice ``index``; everything in it may be empty.

    ``entries`` are those of tokens whose text has been sent; ``prompt_logprobs`` comes once.
    """

    index: int
    text: str = ""
    entries: tuple[TokenEntry, ...] = ()
    token_ids: tuple[int, ...] = ()
    finish: str | None = None
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None


class Assembler:
    """State of one choice.

    A log probability entry is released with the first character of its token's text, so that
    streamed and whole answers agree; the entry of the end token, and those of tokens that begin
    at or behind a stop string, are dropped. ``tokens`` counts what the engine generated up to the
    end or to the token that completed a stop string.
    """

    def __init__(
        self, index: int, detokenizer: Detokenizer, matcher: Matcher, *, min_tokens: int = 0
    ) -> None:
        self.index = index
        self.tokens = 0
        self.cached_tokens = 0
        self.finish: str | None = None
        self._detokenizer = detokenizer
        self._matcher = matcher
        self._min_tokens = min_tokens
        self._decoded = 0  # characters decoded, held back or not
        self._sent = 0  # characters given out
        self._held: list[TokenEntry] = []

    def push(self, delta: TokenDelta) -> Piece:
        """Take one delta of a sequence that the engine has not given up."""
        self.cached_tokens = max(self.cached_tokens, delta.cached_tokens)
        before = self.tokens
        text = self._take(delta)
        stopped = self.finish is not None
        if not stopped and delta.finish_reason is not None:
            text += self._flush()
            stopped = self.finish is not None
            self.finish = self.finish or delta.finish_reason.value
        self._sent += len(text)
        ended = self.finish is not None and not stopped
        return Piece(
            self.index,
            text,
            self._release(everything=ended),
            delta.token_ids[: self.tokens - before],
            self.finish,
            delta.prompt_logprobs,
        )

    def _take(self, delta: TokenDelta) -> str:
        """Decode token by token, up to a stop string or the end token."""
        ids = delta.token_ids
        ends = delta.finish_reason is FinishReason.STOP
        text = ""
        for position, token in enumerate(ids):
            self.tokens += 1
            if ends and position == len(ids) - 1:
                break
            if delta.logprobs:
                self._held.append(TokenEntry(delta.logprobs[position], self._decoded))
            text += self._match(self._detokenizer.push((token,)))
            if self.finish is not None:
                break
        return text

    def _match(self, decoded: str) -> str:
        """What may be sent of new text. Stop strings do not count within min_tokens."""
        self._decoded += len(decoded)
        if self.tokens <= self._min_tokens or not decoded:
            return decoded
        text, stopped = self._matcher.push(decoded)
        if stopped:
            self.finish = "stop"
        return text

    def _flush(self) -> str:
        """All held text, at the end of the sequence; a stop string may still be found in it."""
        text = self._match(self._detokenizer.flush())
        return text if self.finish is not None else text + self._matcher.flush()

    def _release(self, *, everything: bool) -> tuple[TokenEntry, ...]:
        """Entries whose text has been sent, at least its first character; or all at the end."""
        held, count = self._held, 0
        while count < len(held) and (everything or held[count].start < self._sent):
            count += 1
        released = tuple(held[:count])
        del held[:count]
        return released
