"""Items of a conversation: to chat messages for the model, and to JSON for the store."""

import secrets
from collections.abc import Sequence
from typing import Any

from msgspec import Struct, field

from app.errors import ApiError
from app.protocol.chat import FunctionCall, Message, ToolCall
from app.protocol.responses_items import (
    CallItem,
    Content,
    InputPart,
    Item,
    MessageItem,
    OutputItem,
    ReasoningItem,
)


def new_id(prefix: str) -> str:
    """A fresh id: ``prefix`` is resp, msg, fc, fco or rs."""
    return f"{prefix}_{secrets.token_hex(24)}"


def text_of(content: Content) -> str:
    """The text of a content; parts are joined by a newline."""
    if isinstance(content, str):
        return content
    return "\n".join(part.plain for part in content)


def item_json(item: Item) -> dict[str, Any]:
    """An input item as it is listed again, with an id."""
    if isinstance(item, MessageItem):
        assistant = item.role == "assistant"
        fields: dict[str, Any] = {"role": item.role, "content": _parts(item.content, assistant)}
        prefix = "msg"
    elif isinstance(item, CallItem):
        fields = {"call_id": item.call_id, "name": item.name, "arguments": item.arguments}
        prefix = "fc"
    elif isinstance(item, OutputItem):
        fields = {"call_id": item.call_id, "output": text_of(item.output)}
        prefix = "fco"
    else:
        content = [{"type": "reasoning_text", "text": part.text} for part in item.content or ()]
        fields = {"summary": item.summary, "content": content}
        prefix = "rs"
    head = {"id": item.id or new_id(prefix), "type": item.type}
    return {**head, "status": item.status or "completed", **fields}


def _parts(content: Content, assistant: bool) -> list[dict[str, Any]]:
    parts = [InputPart(type="text", text=content)] if isinstance(content, str) else content
    return [_part(part, assistant) for part in parts]


def _part(part: InputPart, assistant: bool) -> dict[str, Any]:
    if part.type == "refusal":
        return {"type": "refusal", "refusal": part.plain}
    if assistant:
        return {"type": "output_text", "text": part.plain, "annotations": []}
    return {"type": "input_text", "text": part.plain}


def to_messages(instructions: str | None, items: Sequence[Item]) -> list[Message]:
    """The conversation as chat messages.

    Reasoning, text and calls that follow each other are one turn of the assistant. Raises
    ApiError (400, param input) for an output of a call that is not there.
    """
    turns = _Turns()
    if instructions is not None:
        turns.say("system", instructions)
    for item in items:
        turns.add(item)
    return turns.done()


class _Assistant(Struct):
    """A turn of the assistant in the making."""

    reasoning: list[str] = field(default_factory=list)
    text: str | None = None
    calls: list[ToolCall] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        return not self.reasoning and self.text is None and not self.calls

    def message(self) -> Message:
        text = "" if self.text is None and not self.calls else self.text
        return Message(
            role="assistant",
            content=text,
            tool_calls=self.calls or None,
            reasoning_content="\n".join(self.reasoning) or None,
        )


class _Turns:
    """Joins items to messages."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._names: dict[str, str] = {}  # call id -> function
        self._assistant = _Assistant()

    def say(self, role: str, text: str) -> None:
        """Add a message that is not the assistant's."""
        self._flush()
        self._messages.append(Message.model_validate({"role": role, "content": text}))

    def add(self, item: Item) -> None:
        """Add one item."""
        if isinstance(item, ReasoningItem):
            if self._assistant.text is not None or self._assistant.calls:
                self._flush()
            self._assistant.reasoning += [part.text for part in item.content or ()]
        elif isinstance(item, CallItem):
            self._call(item)
        elif isinstance(item, OutputItem):
            self._output(item)
        elif item.role == "assistant":
            if self._assistant.text is not None or self._assistant.calls:
                self._flush()
            self._assistant.text = text_of(item.content)
        else:
            self.say(item.role, text_of(item.content))

    def done(self) -> list[Message]:
        """All messages."""
        self._flush()
        return self._messages

    def _call(self, item: CallItem) -> None:
        self._names[item.call_id] = item.name
        function = FunctionCall(name=item.name, arguments=item.arguments)
        self._assistant.calls.append(ToolCall(id=item.call_id, function=function))

    def _output(self, item: OutputItem) -> None:
        name = self._names.get(item.call_id)
        if name is None:
            message = f"No tool call found for function call output with call_id {item.call_id!r}."
            raise ApiError(400, message, param="input")
        self._flush()
        self._messages.append(
            Message(role="tool", content=text_of(item.output), tool_call_id=item.call_id, name=name)
        )

    def _flush(self) -> None:
        if not self._assistant.empty:
            self._messages.append(self._assistant.message())
        self._assistant = _Assistant()


def user_item(text: str) -> MessageItem:
    """The item that an input of plain text stands for."""
    return MessageItem(role="user", content=text)
