"""The output of a response as it grows: its items, and the events that tell of each step."""

import json
import secrets
from typing import Any, Literal

from app.errors import ApiError
from app.serving.events import (
    CallArguments,
    CallEnd,
    CallStart,
    Finish,
    ReasoningDelta,
    TextDelta,
    TokenEntry,
    TurnEvent,
)
from app.serving.logprobs import TokenLabels, chat_entries
from app.serving.responses.items import new_id
from app.serving.wire import compact, quoted

Status = Literal["completed", "incomplete"]
PADDED = 32
"""With obfuscation, a delta and its padding fill a multiple of this many characters."""


class ResponseWriter:
    """Grows ``body`` (a response object) and writes OpenAI's events about it, in their order.

    labels: how tokens are shown, where log probabilities are wanted. An item is told of as done
    when the next one starts or the turn ends: only then is it known not to have been cut.
    """

    def __init__(
        self, body: dict[str, Any], labels: TokenLabels | None, *, obfuscate: bool = False
    ) -> None:
        self.body = body
        self._labels = labels
        self._obfuscate = obfuscate
        self._sequence = 0
        self._text: list[str] = []  # of the open item
        self._entries: list[dict[str, Any]] = []  # log probabilities of the open message
        self._held: list[TokenEntry] = []  # of tokens that have not shown in text yet
        self._open: dict[str, Any] | None = None
        self._prefix = ""  # of the open item's deltas

    @property
    def _items(self) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self.body["output"]
        return items

    @property
    def _open_type(self) -> str | None:
        return None if self._open is None else self._open["type"]

    def begin(self) -> str:
        """The events before the model has said anything."""
        return self._state("response.created") + self._state("response.in_progress")

    def add(self, event: TurnEvent) -> str:
        """The events that a step of the turn causes; the end is left to ``end``."""
        match event:
            case TextDelta():
                return self._say(event)
            case ReasoningDelta(text=text):
                return self._need("reasoning") + self._delta(text)
            case CallStart():
                return self._start_call(event)
            case CallArguments(text=text):
                return self._delta(text)
            case CallEnd():
                return ""
            case Finish():
                return self._finish(event)

    def end(self) -> str:
        """The last event; the body holds its usage and times by now."""
        return self._state(f"response.{self.body['status']}")

    def fail(self, error: ApiError) -> str:
        """The last event of a response that the engine gave up."""
        code = "rate_limit_exceeded" if error.status == 429 else "server_error"
        self.body["status"] = "failed"
        self.body["error"] = {"code": code, "message": error.message}
        return self.end()

    def _say(self, delta: TextDelta) -> str:
        if self._labels is not None:
            self._held.extend(delta.entries)
        if not delta.text:
            return ""
        events = self._need("message")
        if self._labels is None:
            return events + self._delta(delta.text, ',"logprobs":[]')
        entries = chat_entries(self._labels, self._held)
        self._held.clear()
        self._entries.extend(entries)
        return events + self._delta(delta.text, f',"logprobs":{compact(entries)}')

    def _finish(self, finish: Finish) -> str:
        cut = finish.reason == "length"
        events = "" if self._items or self._open else self._need("message")
        broken = finish.reason == "stop" and self._open_type == "function_call"
        events += self._close("incomplete" if cut or broken else "completed")
        self.body["status"] = "incomplete" if cut else "completed"
        if cut:
            self.body["incomplete_details"] = {"reason": "max_output_tokens"}
        return events

    def _need(self, kind: str) -> str:
        """Open an item with one part of text, unless it is open."""
        if self._open_type == kind:
            return ""
        events = self._close("completed")
        if kind == "message":
            item: dict[str, Any] = {
                "id": new_id("msg"),
                "type": kind,
                "status": "in_progress",
                "role": "assistant",
            }
            events += self._start({**item, "content": []}, "response.output_text.delta")
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        else:
            item = {"id": new_id("rs"), "type": kind, "status": "in_progress"}
            item |= {"summary": [], "content": []}
            events += self._start(item, "response.reasoning_text.delta")
            part = {"type": "reasoning_text", "text": ""}
        return events + self._event("response.content_part.added", {**self._place(), "part": part})

    def _start_call(self, call: CallStart) -> str:
        self._held.clear()
        events = self._close("completed")
        item = {
            "id": new_id("fc"),
            "type": "function_call",
            "status": "in_progress",
            "arguments": "",
            "call_id": call.id,
            "name": call.name,
        }
        return events + self._start(item, "response.function_call_arguments.delta")

    def _start(self, item: dict[str, Any], delta: str) -> str:
        """Open an item; ``delta`` is the type of the events that will add to it."""
        self._open, self._text, self._entries = item, [], []
        fields = {"type": delta, **self._place()}
        self._prefix = f"event: {delta}\ndata: {compact(fields)[:-1]},"
        added = {"output_index": len(self._items), "item": item}
        return self._event("response.output_item.added", added)

    def _place(self) -> dict[str, Any]:
        """Where the open item, or its one part, is."""
        assert self._open is not None
        place = {"item_id": self._open["id"], "output_index": len(self._items)}
        return place if self._open["type"] == "function_call" else {**place, "content_index": 0}

    def _delta(self, text: str, more: str = "") -> str:
        """The event of a piece of text: one concatenation."""
        self._held.clear()
        self._text.append(text)
        if self._obfuscate:
            more += f',"obfuscation":"{_padding(text)}"'
        return f'{self._prefix}"delta":{quoted(text)}{more},"sequence_number":{self._next()}}}\n\n'

    def _close(self, status: Status) -> str:
        """The events that end the open item, if one is open; it joins the output."""
        item, text = self._open, "".join(self._text)
        if item is None:
            return ""
        if item["type"] == "function_call":
            events = self._close_call(item, text)
            status = status if status == "completed" or not _is_json(text) else "completed"
        else:
            events = self._close_part(item, text)
        item["status"] = status
        events += self._event(
            "response.output_item.done", {"output_index": len(self._items), "item": item}
        )
        self._items.append(item)
        self._open = None
        return events

    def _close_call(self, item: dict[str, Any], text: str) -> str:
        item["arguments"] = text
        fields = {**self._place(), "name": item["name"], "arguments": text}
        return self._event("response.function_call_arguments.done", fields)

    def _close_part(self, item: dict[str, Any], text: str) -> str:
        place = self._place()
        if item["type"] == "message":
            done, logprobs = "response.output_text.done", {"logprobs": self._entries}
            part = {"type": "output_text", "text": text, "annotations": [], **logprobs}
        else:
            done, logprobs = "response.reasoning_text.done", {}
            part = {"type": "reasoning_text", "text": text}
        item["content"] = [part]
        return self._event(done, {**place, "text": text, **logprobs}) + self._event(
            "response.content_part.done", {**place, "part": part}
        )

    def _state(self, kind: str) -> str:
        return self._event(kind, {"response": self.body})

    def _event(self, kind: str, fields: dict[str, Any]) -> str:
        data = {"type": kind, **fields, "sequence_number": self._next()}
        return f"event: {kind}\ndata: {compact(data)}\n\n"

    def _next(self) -> int:
        number = self._sequence
        self._sequence += 1
        return number


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _padding(text: str) -> str:
    """Random letters that fill a delta up, so that its size on the wire tells less of its text."""
    return secrets.token_hex(PADDED)[: PADDED - len(text) % PADDED]
