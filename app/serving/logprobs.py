"""Log probabilities in OpenAI's two shapes: chat entries and parallel lists."""

from collections.abc import Iterable
from typing import Any

from msgspec import Struct, field

from app.serving.events import TokenEntry
from engine.text.tokenizer import Tokenizer
from engine.types import TokenLogprobs

FLOOR = -9999.0
"""Stands for minus infinity, which JSON cannot say."""


class TokenLabels:
    """How an answer shows tokens: text and bytes, kept because alternatives recur."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._texts: dict[int, str] = {}

    def text(self, token: int) -> str:
        """The token's text, or ``bytes:\\xf0...`` when it is a part of a character."""
        text = self._texts.get(token)
        if text is None:
            text = self._texts[token] = self._tokenizer.token_text(token)
        return text

    def bytes(self, token: int) -> list[int]:
        """The token's bytes, possibly a part of a character."""
        return list(self._tokenizer.token_bytes(token))


def chat_entries(labels: TokenLabels, entries: Iterable[TokenEntry]) -> list[dict[str, Any]]:
    """Entries of ``logprobs.content`` of a chat completion."""
    return [_chat_entry(labels, entry.logprobs) for entry in entries]


def _chat_entry(labels: TokenLabels, token: TokenLogprobs) -> dict[str, Any]:
    top = [_chat_token(labels, other, value) for other, value in token.top]
    return {**_chat_token(labels, token.token_id, token.logprob), "top_logprobs": top}


def _chat_token(labels: TokenLabels, token: int, value: float) -> dict[str, Any]:
    return {
        "token": labels.text(token),
        "logprob": max(value, FLOOR),
        "bytes": labels.bytes(token),
    }


def prompt_entries(
    labels: TokenLabels, scores: Iterable[TokenLogprobs | None]
) -> list[dict[str, Any] | None]:
    """``prompt_logprobs`` as vLLM writes them: per token, its own and the likeliest ids.

    rank: 1 is the most likely id; null for a token that is not among the alternatives asked for.
    """
    return [None if score is None else _prompt_entry(labels, score) for score in scores]


def _prompt_entry(labels: TokenLabels, score: TokenLogprobs) -> dict[str, Any]:
    ranked = {token: (rank, value) for rank, (token, value) in enumerate(score.top, 1)}
    own = ranked.get(score.token_id, (None, score.logprob))
    return {
        str(token): {
            "logprob": max(value, FLOOR),
            "rank": rank,
            "decoded_token": labels.text(token),
        }
        for token, (rank, value) in {score.token_id: own, **ranked}.items()
    }


class LogprobLists(Struct):
    """``logprobs`` of a text completion: parallel lists, one entry per token."""

    tokens: list[str] = field(default_factory=list)
    token_logprobs: list[float | None] = field(default_factory=list)
    top_logprobs: list[dict[str, float] | None] = field(default_factory=list)
    text_offset: list[int] = field(default_factory=list)

    def add(self, labels: TokenLabels, token: TokenLogprobs, offset: int) -> None:
        """Append a token; the token itself is always among its alternatives."""
        top: dict[str, float] = {}
        for other, value in (*token.top, (token.token_id, token.logprob)):
            top.setdefault(labels.text(other), max(value, FLOOR))
        self.tokens.append(labels.text(token.token_id))
        self.token_logprobs.append(max(token.logprob, FLOOR))
        self.top_logprobs.append(top)
        self.text_offset.append(offset)

    def add_first(self, labels: TokenLabels, token_id: int) -> None:
        """Append the first prompt token, which nothing predicts."""
        self.tokens.append(labels.text(token_id))
        self.token_logprobs.append(None)
        self.top_logprobs.append(None)
        self.text_offset.append(0)

    def extend(self, other: "LogprobLists") -> None:
        """Append all of ``other``."""
        self.tokens.extend(other.tokens)
        self.token_logprobs.extend(other.token_logprobs)
        self.top_logprobs.extend(other.top_logprobs)
        self.text_offset.extend(other.text_offset)

    def as_json(self) -> dict[str, Any]:
        """The lists by name."""
        return {
            "tokens": self.tokens,
            "token_logprobs": self.token_logprobs,
            "top_logprobs": self.top_logprobs,
            "text_offset": self.text_offset,
        }
