"""What all answers share: identity, usage, and the two ways to send them."""

import json
import secrets
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

from msgspec import Struct
from starlette.responses import Response

from app.sse import DONE


class AnswerHead(Struct, frozen=True):
    """The fields that every object of one answer repeats."""

    id: str
    created: int
    model: str
    fingerprint: str

    @classmethod
    def new(cls, prefix: str, model: str, core_digest: str) -> "AnswerHead":
        """A fresh identity: ``prefix`` is ``chatcmpl`` or ``cmpl``."""
        name = f"{prefix}-{secrets.token_hex(12)}"
        return cls(name, int(time.time()), model, f"fp_{core_digest[:12]}")

    def fields(self, kind: str) -> dict[str, Any]:
        """The fields as JSON, ``kind`` being the object's name."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }


class Usage(Struct, frozen=True):
    """Token counts of an answer. A prompt is counted once, whatever ``n`` is."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int = 0

    def as_json(self) -> dict[str, Any]:
        """OpenAI's usage object; reasoning is a part of the completion, told when there is any."""
        body: dict[str, Any] = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }
        if self.reasoning_tokens:
            body["completion_tokens_details"] = {"reasoning_tokens": self.reasoning_tokens}
        return body


P_contra = TypeVar("P_contra", contravariant=True)
P = TypeVar("P")


class ChunkWriter(Protocol[P_contra]):
    """Writes the chunks of a streamed answer as ready-made events."""

    def chunk(self, piece: P_contra, /) -> str:
        """The events for a piece; empty when it holds nothing to send."""
        ...

    def usage(self, usage: Usage) -> str:
        """The chunk that carries the usage."""
        ...


def renderer(
    writer: ChunkWriter[P], finished: Callable[[], bool], count: Callable[[], Usage] | None
) -> Callable[[Iterable[P]], str]:
    """Writes pieces as a writer's chunks, and the end behind the last one.

    ``count`` gives the usage for the chunk before the end; None sends none.
    """

    def render(pieces: Iterable[P]) -> str:
        text = "".join(map(writer.chunk, pieces))
        if finished():
            text += (writer.usage(count()) if count else "") + DONE
        return text

    return render


def event(body: dict[str, Any]) -> str:
    """A server-sent event. ASCII only: some clients split lines at U+2028 and the like."""
    return f"data: {compact(body)}\n\n"


quoted = json.encoder.encode_basestring_ascii
"""A text as JSON, like ``compact``: the one thing that every chunk of a stream needs."""


def compact(body: object) -> str:
    """JSON without spaces, non-ASCII characters escaped, NaN refused."""
    return json.dumps(body, separators=(",", ":"), allow_nan=False)


def json_response(body: dict[str, Any]) -> Response:
    """A whole answer. Lone surrogates, which a model can put into arguments, stay escapes."""
    text = json.dumps(body, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    try:
        data = text.encode()
    except UnicodeEncodeError:
        data = compact(body).encode()
    return Response(data, media_type="application/json")
