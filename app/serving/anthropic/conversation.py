"""Anthropic's system text and turns, as chat messages."""

import json
from collections.abc import Sequence

from app.errors import ApiError
from app.protocol.chat import FunctionCall, Message, ToolCall
from app.protocol.messages import PromptFields
from app.protocol.messages_blocks import (
    AssistantTurn,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    UserTurn,
)

ERROR_MARK = "Error: "
"""Stands before the content of a failed tool's result: chat templates know no such flag."""


def text_of(content: str | Sequence[TextBlock] | None) -> str:
    """The text of a content; blocks are joined by a newline."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(block.text for block in content)


def to_messages(request: PromptFields) -> list[Message]:
    """The conversation as chat messages; user turns that follow each other are one.

    Raises ApiError (400) for the result of a tool that was not used.
    """
    turns = _Turns()
    if request.system:
        turns.say("system", text_of(request.system))
    for turn in request.messages:
        if isinstance(turn, AssistantTurn):
            turns.assistant(turn)
        elif isinstance(turn, UserTurn):
            turns.user(turn)
        else:
            turns.say("system", text_of(turn.content))
    return turns.done()


def continues(request: PromptFields) -> bool:
    """Whether the model is to go on with the last turn. Raises ApiError (400) if it cannot."""
    last = request.messages[-1]
    if not isinstance(last, AssistantTurn):
        return False
    if not isinstance(last.content, str) and any(
        not isinstance(block, TextBlock) for block in last.content
    ):
        message = "A last message of the assistant must be text: tool_use needs its tool_result."
        raise ApiError(400, f"messages: {message}", param="messages")
    return True


class _Turns:
    """Joins turns and blocks to messages."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._names: dict[str, str] = {}  # tool use id -> tool
        self._said: list[str] = []  # by the user, since the last message

    def say(self, role: str, text: str) -> None:
        """Add a message of plain text."""
        self._flush()
        self._messages.append(Message.model_validate({"role": role, "content": text}))

    def user(self, turn: UserTurn) -> None:
        """Add what a user said; results of tools are messages of their own."""
        if isinstance(turn.content, str):
            self._said.append(turn.content)
            return
        for block in turn.content:
            if isinstance(block, ToolResultBlock):
                self._result(block)
            else:
                self._said.append(block.text)

    def assistant(self, turn: AssistantTurn) -> None:
        """Add what the model said, thought and called."""
        self._flush()
        if isinstance(turn.content, str):
            self._messages.append(Message(role="assistant", content=turn.content))
            return
        texts = [block.text for block in turn.content if isinstance(block, TextBlock)]
        thoughts = [b.thinking for b in turn.content if isinstance(b, ThinkingBlock)]
        calls = [self._call(block) for block in turn.content if isinstance(block, ToolUseBlock)]
        self._messages.append(
            Message(
                role="assistant",
                content="\n".join(texts) if texts or not calls else None,
                tool_calls=calls or None,
                reasoning_content="\n".join(thoughts) or None,
            )
        )

    def done(self) -> list[Message]:
        """All messages."""
        self._flush()
        return self._messages

    def _call(self, block: ToolUseBlock) -> ToolCall:
        self._names[block.id] = block.name
        arguments = json.dumps(block.input, ensure_ascii=False, allow_nan=False)
        function = FunctionCall(name=block.name, arguments=arguments)
        return ToolCall(id=block.id, function=function)

    def _result(self, block: ToolResultBlock) -> None:
        name = self._names.get(block.tool_use_id)
        if name is None:
            message = f"messages: unexpected tool_use_id {block.tool_use_id[:200]!r} in tool_result"
            raise ApiError(400, f"{message}: no tool_use before it has this id.", param="messages")
        self._flush()
        text = (ERROR_MARK if block.is_error else "") + text_of(block.content)
        self._messages.append(
            Message(role="tool", content=text, tool_call_id=block.tool_use_id, name=name)
        )

    def _flush(self) -> None:
        if self._said:
            self._messages.append(Message(role="user", content="\n".join(self._said)))
            self._said = []
