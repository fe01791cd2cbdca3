"""``POST /v1/messages``: body to running turn to whole or streamed message; and token counts."""

import json
import secrets
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Any

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from app.errors import ApiError, anthropic_json
from app.protocol.chat import TemplateFields
from app.protocol.messages import CountRequest, MessageRequest, PromptFields
from app.protocol.sampling import GenerationFields
from app.protocol.tools import AUTO, FunctionTool, Mode, ToolChoice
from app.serving.answer_stream import AnswerStream
from app.serving.anthropic.conversation import continues, to_messages
from app.serving.anthropic.writer import PING, MessageWriter
from app.serving.context import ServingContext
from app.serving.events import TurnEvent
from app.serving.prompts import chat_prompt
from app.serving.rules import check_tools
from app.serving.thinking import template_switch
from app.serving.turn import Turn, TurnRequest, start_turn
from app.sse import EventStream
from engine.types import GrammarSpec

_MODES: dict[str, Mode] = {"auto": "auto", "any": "required", "tool": "named", "none": "none"}


class MessageAnswer(Struct, frozen=True):
    """A running message; its owner calls ``close``."""

    turn: Turn
    writer: MessageWriter

    def close(self) -> None:
        """Abort what still runs."""
        self.turn.close()

    def stream(self) -> AnswerStream:
        """The streamed message; it begins with the model's first token."""
        return self.turn.stream(self._render)

    async def whole(self) -> dict[str, Any]:
        """The message in one piece."""
        async with aclosing(self.turn.events()) as batches:
            async for events in batches:
                self._render(events)
        return self.writer.body

    def _render(self, events: Sequence[TurnEvent]) -> str:
        """Anthropic's events; the body grows with them."""
        writer = self.writer
        text = "" if writer.begun else writer.begin(self.turn.usage())
        text += "".join(map(writer.add, events))
        return text + writer.end(self.turn.usage()) if self.turn.finished else text


def stream_opener(request: Request) -> Callable[[MessageAnswer, float], Response]:
    """Makes the streamed HTTP response to ``request``: pings and errors are Anthropic's events."""

    def failure(error: ApiError) -> bytes:
        return f"event: error\ndata: {anthropic_json(error, request.scope)}\n\n".encode()

    def open_stream(answer: MessageAnswer, ping_seconds: float) -> Response:
        return EventStream(
            answer.stream(),
            ping_seconds=ping_seconds,
            close=answer.close,
            failure=failure,
            keep_alive=PING.encode(),
        )

    return open_stream


async def start_message(context: ServingContext, request: MessageRequest) -> MessageAnswer:
    """Check, render, tokenize and submit. Raises ApiError or RequestError; nothing runs then."""
    context.check_model(request.model)
    message_id = f"msg_{secrets.token_hex(12)}"
    turn = await start_turn(context, _turn(context, message_id, request))
    left = context.engine.model.context_length - len(turn.prompt_ids)
    limit = "max_tokens" if request.max_tokens <= left else "model_context_window_exceeded"
    body: dict[str, Any] = {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }
    return MessageAnswer(turn, MessageWriter(body, limit))


async def count_tokens(context: ServingContext, request: CountRequest) -> dict[str, Any]:
    """How many tokens the prompt of such a message has."""
    context.check_model(request.model)
    tools, choice = asked_tools(request)
    offered = () if choice.mode == "none" else tools
    prompt = await chat_prompt(context, to_messages(request), _template(context, request), offered)
    return {"input_tokens": len(prompt.ids)}


def asked_tools(request: PromptFields) -> tuple[tuple[FunctionTool, ...], ToolChoice]:
    """The tools of a request and which of them to use. Raises as ``check_tools``."""
    tools = tuple(
        FunctionTool(tool.name, tool.description, tool.input_schema or {}, bool(tool.strict))
        for tool in request.tools or ()
    )
    asked = request.tool_choice
    choice = AUTO
    if asked is not None:
        choice = ToolChoice(_MODES[asked.type], asked.name if asked.type == "tool" else None)
    check_tools(tools, choice)
    return tools, choice


def _turn(context: ServingContext, message_id: str, request: MessageRequest) -> TurnRequest:
    tools, choice = asked_tools(request)
    asked = request.tool_choice
    return TurnRequest(
        id=message_id,
        messages=to_messages(request),
        sampling=GenerationFields(
            model=request.model,
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=request.top_k,
            stop=list(request.stop_sequences or ()),
        ),
        template=_template(context, request),
        most_tokens=request.max_tokens,
        grammar=_grammar(request),
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=asked is None or not asked.disable_parallel_tool_use,
    )


def _grammar(request: PromptFields) -> GrammarSpec | None:
    """What the text must look like, if ``output_config.format`` says so."""
    asked = request.output_config.format if request.output_config else None
    if asked is None:
        return None
    return GrammarSpec("json_schema", json.dumps(asked.schema_), param="output_config")


def _template(context: ServingContext, request: PromptFields) -> TemplateFields:
    """How the prompt is rendered; a model that can be told does not think unless it is asked to."""
    thinking = request.thinking
    wanted = None if thinking is None else thinking.type != "disabled"
    variables = template_switch(context, wanted, "thinking", default=False)
    return TemplateFields(
        continue_final_message=continues(request) or None, chat_template_kwargs=variables
    )
