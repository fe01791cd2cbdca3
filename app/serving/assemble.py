"""One choice of an answer: token deltas in, text pieces and their log probabilities out."""

from typing import Protocol

from msgspec import Struct

from app.serving.events import Reader, TokenEntry, TurnEvent
from engine.types import FinishReason, TokenDelta, TokenLogprobs


class Detokenizer(Protocol):
    """Turns the token ids of one sequence into text, holding back incomplete characters."""

    def push_one(self, token_id: int) -> str: ...

    def flush(self) -> str: ...


class Matcher(Protocol):
    """Finds stop strings in growing text, holding back what may become one.

    ``found`` is the one that ended it.
    """

    @property
    def found(self) -> str | None: ...

    def push(self, text: str) -> tuple[str, bool]: ...

    def flush(self) -> str: ...


class Piece(Struct, frozen=True):
    """What one delta adds to choice ``index``; everything in it may be empty.

    ``entries`` are those of tokens whose text has been sent; ``prompt_logprobs`` comes once.
    ``finish`` is "stop", "length" or, from a reader, "tool_calls"; ``stop`` the stop string that
    was found. ``events``: what a reader made of the text; None without one.
    """

    index: int
    text: str = ""
    entries: tuple[TokenEntry, ...] = ()
    token_ids: tuple[int, ...] = ()
    finish: str | None = None
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    stop: str | None = None
    events: tuple[TurnEvent, ...] | None = None


class Assembler:
    """State of one choice.

    A log probability entry is released with the first character of its token's text, so that
    streamed and whole answers agree; the entry of the end token, and those of tokens that begin
    at or behind a stop string, are dropped. ``tokens`` counts what the engine generated up to the
    end or to the token that completed a stop string, ``reasoning_tokens`` those of them that a
    ``reader`` took for reasoning. A reader gets the text token by token, so that nothing depends
    on how many tokens a delta has.
    """

    def __init__(
        self,
        index: int,
        detokenizer: Detokenizer,
        matcher: Matcher,
        *,
        min_tokens: int = 0,
        reader: Reader | None = None,
    ) -> None:
        self.index = index
        self.tokens = 0
        self.reasoning_tokens = 0
        self.cached_tokens = 0
        self.finish: str | None = None
        self._detokenizer = detokenizer
        self._matcher = matcher
        self._min_tokens = min_tokens
        self._reader = reader
        self._decoded = 0  # characters decoded, held back or not
        self._sent = 0  # characters given out
        self._held: list[TokenEntry] = []

    def push(self, delta: TokenDelta) -> Piece:
        """Take one delta of a sequence that the engine has not given up."""
        if self._plain(delta):
            return self._push_plain(delta)
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
        events = None if self._reader is None else self._events(self._reader)
        return Piece(
            self.index,
            text,
            self._release(everything=ended),
            delta.token_ids[: self.tokens - before],
            self.finish,
            delta.prompt_logprobs,
            self._matcher.found,
            events,
        )

    def _plain(self, delta: TokenDelta) -> bool:
        """Whether a delta is one token of text, not the last, without entries or a reader."""
        return (
            self._reader is None
            and delta.finish_reason is None
            and not delta.logprobs
            and not self._held
            and len(delta.token_ids) == 1
        )

    def _push_plain(self, delta: TokenDelta) -> Piece:
        """``push`` of such a delta, as nearly all are."""
        self.cached_tokens = max(self.cached_tokens, delta.cached_tokens)
        ids = delta.token_ids
        self.tokens += 1
        text = self._match(self._detokenizer.push_one(ids[0]))
        self._sent += len(text)
        found = None if self.finish is None else self._matcher.found
        return Piece(self.index, text, (), ids, self.finish, delta.prompt_logprobs, found)

    def _take(self, delta: TokenDelta) -> str:
        """Decode token by token, up to a stop string, the end token or what the reader ends."""
        ids = delta.token_ids
        ends = delta.finish_reason is FinishReason.STOP
        text = ""
        for position, token in enumerate(ids):
            self.tokens += 1
            if ends and position == len(ids) - 1:
                break
            if delta.logprobs:
                self._held.append(TokenEntry(delta.logprobs[position], self._decoded))
            new = self._match(self._detokenizer.push_one(token))
            text += new
            if self._reader is not None:
                self._read(self._reader, new)
            if self.finish is not None:
                break
        return text

    def _read(self, reader: Reader, text: str) -> None:
        """Hand a token's text to the reader, which may end the choice."""
        self.reasoning_tokens += reader.reasoning
        if text and reader.push(text):
            self.finish = "stop"

    def _events(self, reader: Reader) -> tuple[TurnEvent, ...]:
        """What the reader made of the text so far; a call turns "stop" into "tool_calls"."""
        if self.finish is not None:
            reader.finish()
            if self.finish == "stop" and reader.called:
                self.finish = "tool_calls"
        return reader.take()

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
        if self.finish is None:
            text += self._matcher.flush()
        if self._reader is not None and text:
            self._reader.push(text)
        return text

    def _release(self, *, everything: bool) -> tuple[TokenEntry, ...]:
        """Entries whose text has been sent, at least its first character; or all at the end."""
        held, count = self._held, 0
        while count < len(held) and (everything or held[count].start < self._sent):
            count += 1
        released = tuple(held[:count])
        del held[:count]
        return released
