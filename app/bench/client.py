"""The one client: streamed completions of any OpenAI-compatible server, timed chunk by chunk."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

import msgspec

from app.bench.http import aiohttp, session


class ReplyError(RuntimeError):
    """A request that failed or sent no token."""


@dataclass(slots=True)
class Reply:
    """What came back. Times are seconds of ``time.perf_counter``; ``arrivals``: of token chunks."""

    sent: float
    arrivals: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    text: str = ""

    @property
    def first_token_s(self) -> float:
        """Seconds from sending to the first token."""
        return self.arrivals[0] - self.sent

    @property
    def tokens(self) -> int:
        """Tokens generated: the server's own count when it sends one, else the chunks."""
        return self.completion_tokens or len(self.arrivals)

    @property
    def decode_tok_s(self) -> float:
        """Tokens a second after the first one."""
        return (self.tokens - 1) / (self.arrivals[-1] - self.arrivals[0])


class Client:
    """Streams completions from one base URL (ends in /v1). Use as an async context manager.

    ``body``: fields of every request. ``api_key``: sent as bearer token. ``timeout_s``: without a
    byte from the server.
    """

    def __init__(
        self,
        base_url: str,
        body: Mapping[str, object],
        timeout_s: float,
        api_key: str | None = None,
    ) -> None:
        self._url = f"{base_url}/completions"
        self._body = body
        self._timeout_s = timeout_s
        self._api_key = api_key

    async def __aenter__(self) -> "Client":
        self._http = session(self._timeout_s, self._api_key)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    async def complete(
        self,
        prompt: str,
        max_tokens: int,
        reply: Reply | None = None,
        stop: asyncio.Event | None = None,
    ) -> Reply:
        """Send one prompt and read its stream; ``reply`` may be watched while it grows.

        Leaves the stream, as a client that goes away does, when ``stop`` is set. Raises
        ReplyError when the server refuses, reports an error or sends no token.
        """
        reply = reply or Reply(0.0)
        body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "stream": True}
        reply.sent = time.perf_counter()
        try:
            async with self._http.post(self._url, json={**body, **self._body}) as response:
                if response.status != 200:
                    detail = await response.text(errors="replace")
                    raise ReplyError(f"HTTP {response.status}: {detail[:300]}")
                async for at, event in _events(response):
                    _take(reply, at, event)
                    if stop is not None and stop.is_set():
                        break
        except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError) as error:
            raise ReplyError(repr(error)) from error
        if not reply.arrivals:
            raise ReplyError("the stream held no token")
        return reply


async def _events(
    response: aiohttp.ClientResponse,
) -> AsyncIterator[tuple[float, dict[str, object]]]:
    """The JSON events of an event stream, each with the time at which its bytes were read."""
    rest = b""
    async for part in response.content.iter_any():
        now = time.perf_counter()
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            data = line.removeprefix(b"data:").strip()
            if line.startswith(b"data:") and data != b"[DONE]":
                yield now, msgspec.json.decode(data)


def _take(reply: Reply, at: float, event: dict[str, object]) -> None:
    """Add one event. A chunk counts as a token unless it is an empty final one."""
    if "error" in event:
        raise ReplyError(str(event["error"])[:300])
    usage = event.get("usage")
    if isinstance(usage, dict):
        reply.prompt_tokens = int(usage.get("prompt_tokens") or 0)
        reply.completion_tokens = int(usage.get("completion_tokens") or 0)
    choices = event.get("choices")
    for choice in choices if isinstance(choices, list) else []:
        text = choice.get("text") or ""
        if text or not choice.get("finish_reason"):
            reply.arrivals.append(at)
            reply.text += text
