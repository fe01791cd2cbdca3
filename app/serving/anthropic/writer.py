"""A message as it grows: its content blocks, and the events that tell of each step."""

import json
from typing import Any

from app.protocol.body import writable
from app.serving.events import (
    CallArguments,
    CallEnd,
    CallStart,
    Finish,
    ReasoningDelta,
    TextDelta,
    TurnEvent,
)
from app.serving.wire import Usage, compact, quoted

PING = 'event: ping\ndata: {"type":"ping"}\n\n'


class MessageWriter:
    """Grows ``body`` (a message object) and writes Anthropic's events about it, in their order.

    limit: the stop reason of a message that was cut. begun: ``begin`` was called.
    """

    def __init__(self, body: dict[str, Any], limit: str) -> None:
        self.body = body
        self._limit = limit
        self._text: list[str] = []  # of the open block
        self._open: dict[str, Any] | None = None
        self._pinged = False
        self.begun = False
        self._prefix = ""  # of the open block's deltas

    @property
    def _blocks(self) -> list[dict[str, Any]]:
        blocks: list[dict[str, Any]] = self.body["content"]
        return blocks

    def begin(self, usage: Usage) -> str:
        """The first event, when it is known how much of the prompt was cached."""
        self.begun = True
        self.body["usage"] = usage_json(usage, 0)
        return _event("message_start", {"message": self.body})

    def add(self, event: TurnEvent) -> str:
        """The events that a step of the turn causes; the end is left to ``end``."""
        match event:
            case TextDelta(text=text):
                return self._need("text") + self._delta(text) if text else ""
            case ReasoningDelta(text=text):
                return self._need("thinking") + self._delta(text)
            case CallStart():
                return self._start_call(event)
            case CallArguments(text=text):
                return self._delta(text)
            case CallEnd():
                return ""
            case Finish():
                return self._finish(event)

    def end(self, usage: Usage) -> str:
        """The last events, with the counts."""
        self.body["usage"] = usage_json(usage, usage.completion_tokens)
        names = ("stop_reason", "stop_sequence")
        delta = {name: self.body[name] for name in names}
        counts = {k: v for k, v in self.body["usage"].items() if k != "service_tier"}
        told = _event("message_delta", {"delta": delta, "usage": counts})
        return told + _event("message_stop", {})

    def _finish(self, finish: Finish) -> str:
        events = self._close()
        reasons = {"stop": "end_turn", "length": self._limit, "tool_calls": "tool_use"}
        reason = reasons[finish.reason]
        if finish.reason == "stop" and finish.stop is not None:
            reason = "stop_sequence"
            self.body["stop_sequence"] = finish.stop
        self.body["stop_reason"] = reason
        return events

    def _need(self, kind: str) -> str:
        """Open a block of text or thinking, unless it is open."""
        if self._open is not None and self._open["type"] == kind:
            return ""
        block: dict[str, Any] = {"type": kind, kind: ""}
        if kind == "thinking":
            block["signature"] = ""
        return self._close() + self._start(block, f"{kind}_delta", kind)

    def _start_call(self, call: CallStart) -> str:
        block = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
        return self._close() + self._start(block, "input_json_delta", "partial_json")

    def _start(self, block: dict[str, Any], delta: str, field: str) -> str:
        """Open a block; ``field`` of events of type ``delta`` will add to it."""
        index = len(self._blocks)
        self._open, self._text = block, []
        self._prefix = (
            'event: content_block_delta\ndata: {"type":"content_block_delta",'
            f'"index":{index},"delta":{{"type":"{delta}","{field}":'
        )
        events = _event("content_block_start", {"index": index, "content_block": block})
        if not self._pinged:
            self._pinged = True
            events += PING
        return events

    def _delta(self, text: str) -> str:
        """The event of a piece of text: one concatenation."""
        self._text.append(text)
        return f"{self._prefix}{quoted(text)}}}}}\n\n"

    def _close(self) -> str:
        """The event that ends the open block, if one is open; it joins the content.

        Arguments that were cut are no JSON: the block's input is then empty, as a client that
        reads the stream cannot have it either.
        """
        block, text = self._open, "".join(self._text)
        if block is None:
            return ""
        if block["type"] == "tool_use":
            block["input"] = _object(text)
        else:
            block[block["type"]] = text
        event = _event("content_block_stop", {"index": len(self._blocks)})
        self._blocks.append(block)
        self._open = None
        return event


def usage_json(usage: Usage, output_tokens: int) -> dict[str, Any]:
    """Anthropic's counts: ``input_tokens`` are those that the cache did not give."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": output_tokens,
        "service_tier": "standard",
    }


def _object(text: str) -> dict[str, Any]:
    """Arguments as an object; empty when they are none, or hold what JSON cannot say (NaN)."""
    try:
        value = writable(json.loads(text))
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _event(kind: str, fields: dict[str, Any]) -> str:
    return f"event: {kind}\ndata: {compact({'type': kind, **fields})}\n\n"
