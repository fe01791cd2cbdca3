"""The message of one choice of a chat completion, collected from a turn's events."""

from typing import Any

from msgspec import Struct, field

from app.serving.events import (
    CallArguments,
    CallStart,
    Finish,
    ReasoningDelta,
    TextDelta,
    TokenEntry,
    TurnEvent,
)
from app.serving.logprobs import TokenLabels, chat_entries


class _Call(Struct):
    """A call and the parts of its arguments."""

    start: CallStart
    arguments: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        function = {"name": self.start.name, "arguments": "".join(self.arguments)}
        return {"id": self.start.id, "type": "function", "function": function}


class ChatMessage(Struct):
    """What has been collected of one choice."""

    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[_Call] = field(default_factory=list)
    entries: list[TokenEntry] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finish: str | None = None

    def add(self, event: TurnEvent) -> None:
        """Take the choice's next event."""
        match event:
            case TextDelta():
                self.text.append(event.text)
                self.entries.extend(event.entries)
                self.token_ids.extend(event.token_ids)
            case ReasoningDelta():
                self.reasoning.append(event.text)
            case CallStart():
                self.calls.append(_Call(event))
            case CallArguments():
                self.calls[event.call].arguments.append(event.text)
            case Finish():
                self.finish = event.reason

    def as_json(self, index: int, labels: TokenLabels | None, *, token_ids: bool) -> dict[str, Any]:
        """The choice. ``labels`` are given when log probabilities were asked for."""
        logprobs = None
        if labels is not None:
            logprobs = {"content": chat_entries(labels, self.entries), "refusal": None}
        body: dict[str, Any] = {
            "index": index,
            "message": self._message(),
            "logprobs": logprobs,
            "finish_reason": self.finish,
        }
        if token_ids:
            body["token_ids"] = self.token_ids
        return body

    def _message(self) -> dict[str, Any]:
        """Content is null beside calls when there is no text."""
        text = "".join(self.text)
        content = None if self.calls and not text else text
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        reasoning = "".join(self.reasoning)
        if reasoning:
            message["reasoning_content"] = reasoning
        if self.calls:
            message["tool_calls"] = [call.as_json() for call in self.calls]
        return message
