"""Chat completions: body to running turn to whole or streamed answer."""

from contextlib import aclosing
from typing import Any

from msgspec import Struct

from app.errors import ApiError
from app.protocol.chat import ChatRequest
from app.serving.answer_stream import AnswerStream
from app.serving.chat_message import ChatMessage
from app.serving.chat_stream import ChatChunks
from app.serving.context import ServingContext
from app.serving.logprobs import prompt_entries
from app.serving.rules import (
    asked_tools,
    check_prompt_logprobs,
    check_stream_options,
    includes_usage,
)
from app.serving.turn import Turn, TurnRequest, start_turn
from app.serving.wire import AnswerHead, renderer


class ChatAnswer(Struct, frozen=True):
    """A running chat completion; its owner calls ``close``."""

    head: AnswerHead
    turn: Turn
    logprobs: bool
    token_ids: bool
    usage_chunk: bool

    def close(self) -> None:
        """Abort what still runs."""
        self.turn.close()

    def stream(self) -> AnswerStream:
        """The streamed answer."""
        turn = self.turn
        writer = ChatChunks(
            self.head, turn, self.logprobs, self.token_ids, usage_chunk=self.usage_chunk
        )
        count = turn.usage if self.usage_chunk else None
        return turn.stream(renderer(writer, lambda: turn.finished, count))

    async def whole(self) -> dict[str, Any]:
        """The answer in one piece."""
        turn = self.turn
        choices = [ChatMessage() for _ in range(turn.choices)]
        async with aclosing(turn.events()) as batches:
            async for events in batches:
                for event in events:
                    choices[event.index].add(event)
        labels = turn.labels if self.logprobs else None
        body = self.head.fields("chat.completion")
        body["choices"] = [
            choice.as_json(index, labels, token_ids=self.token_ids)
            for index, choice in enumerate(choices)
        ]
        body["usage"] = turn.usage().as_json()
        if self.token_ids:
            body["prompt_token_ids"] = turn.prompt_ids
        if turn.prompt_logprobs is not None:
            body["prompt_logprobs"] = prompt_entries(turn.labels, turn.prompt_logprobs)
        return body


async def start_chat(context: ServingContext, request: ChatRequest) -> ChatAnswer:
    """Check, render, tokenize and submit. Raises ApiError or RequestError; nothing runs then."""
    context.check_model(request.model)
    _check(request)
    head = AnswerHead.new("chatcmpl", request.model, context.engine.model.core_digest)
    turn = await start_turn(context, _turn(head.id, request))
    return ChatAnswer(
        head,
        turn,
        bool(request.logprobs),
        bool(request.return_token_ids),
        includes_usage(request),
    )


def _turn(answer_id: str, request: ChatRequest) -> TurnRequest:
    asked = request.max_completion_tokens
    tools, choice = asked_tools(request)
    return TurnRequest(
        id=answer_id,
        messages=request.messages,
        sampling=request,
        template=request,
        max_tokens=request.max_tokens if asked is None else asked,
        logprobs=(request.top_logprobs or 0) if request.logprobs else None,
        prompt_logprobs=request.prompt_logprobs,
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=request.parallel_tool_calls is not False,
    )


def _check(request: ChatRequest) -> None:
    """Rules between fields. Raises ApiError (400) naming one of them."""
    check_stream_options(request)
    check_prompt_logprobs(request)
    if request.top_logprobs is not None and not request.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs to be true.", param="top_logprobs")
    old, new = request.max_tokens, request.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise ApiError(
            400,
            f"max_completion_tokens is {new} but max_tokens is {old}; give one of them.",
            param="max_completion_tokens",
        )
