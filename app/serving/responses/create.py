"""``POST /v1/responses``: body to running turn to whole or streamed response."""

import json
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from pydantic import TypeAdapter
from starlette.responses import Response

from app.errors import ApiError, bad_field
from app.protocol.chat import TemplateFields
from app.protocol.responses import MESSAGE_LOGPROBS, ResponseRequest
from app.protocol.responses_items import InputItem, Item
from app.protocol.sampling import GenerationFields
from app.serving.answer_stream import AnswerStream
from app.serving.context import ServingContext
from app.serving.events import TurnEvent
from app.serving.responses.body import finish_body, new_body
from app.serving.responses.items import item_json, new_id, to_messages, user_item
from app.serving.responses.store import (
    Exchange,
    ResponseStore,
    StoredResponse,
    previous_not_found,
)
from app.serving.responses.tools import asked_tools
from app.serving.responses.writer import ResponseWriter
from app.serving.thinking import template_switch
from app.serving.turn import Turn, TurnRequest, start_turn
from app.sse import EventStream
from engine.types import GrammarSpec

STORED_ITEMS = TypeAdapter(list[InputItem])


class ResponseAnswer(Struct, frozen=True):
    """A running response; its owner calls ``close``. ``record``: what is kept of it, or None."""

    turn: Turn
    writer: ResponseWriter
    store: ResponseStore
    record: StoredResponse | None

    def close(self) -> None:
        """Abort what still runs."""
        self.turn.close()

    def stream(self) -> AnswerStream:
        """The streamed response; it is kept before its last event is sent."""
        return self.turn.stream(self._render, self.writer.begin())

    async def whole(self) -> dict[str, Any]:
        """The response in one piece."""
        async with aclosing(self.turn.events()) as batches:
            async for events in batches:
                self._render(events)
        return self.writer.body

    def failure(self, error: ApiError) -> bytes:
        """The event that ends the stream of a response that the engine gave up."""
        event = self.writer.fail(error)
        self._keep()
        return event.encode()

    def _render(self, events: Sequence[TurnEvent]) -> str:
        """OpenAI's events; the body grows with them."""
        text = "".join(map(self.writer.add, events))
        if self.turn.finished:
            finish_body(self.writer.body, self.turn.usage())
            self._keep()
            text += self.writer.end()
        return text

    def _keep(self) -> None:
        record = self.record
        if record is None:
            return
        *earlier, own = record.conversation
        own = replace(own, added=tuple(self.writer.body["output"]))
        self.store.put(replace(record, conversation=(*earlier, own)))


def open_stream(answer: ResponseAnswer, ping_seconds: float) -> Response:
    """The streamed HTTP response; an error in it becomes ``response.failed``."""
    return EventStream(
        answer.stream(), ping_seconds=ping_seconds, close=answer.close, failure=answer.failure
    )


async def start_response(
    context: ServingContext, store: ResponseStore, owner: bytes, request: ResponseRequest
) -> ResponseAnswer:
    """Check, render, tokenize and submit. Raises ApiError or RequestError; nothing runs then."""
    context.check_model(request.model)
    _check(request, store)
    earlier = _conversation(store, owner, request.previous_response_id)
    given = [user_item(request.input)] if isinstance(request.input, str) else request.input
    keeps = store.keeps and request.store is not False
    body = new_body(new_id("resp"), request, context.text.info.generation, store=keeps)
    variables = _variables(context, request)
    turn = await start_turn(
        context, _turn(body["id"], request, [*_items(earlier), *given], variables)
    )
    labels = turn.labels if MESSAGE_LOGPROBS in (request.include or ()) else None
    options = request.stream_options
    writer = ResponseWriter(
        body, labels, obfuscate=options is not None and bool(options.include_obfuscation)
    )
    record = None
    if keeps:
        own = Exchange(tuple(map(item_json, given)), ())
        record = StoredResponse(owner, body, (*earlier, own))
    return ResponseAnswer(turn, writer, store, record)


def _variables(context: ServingContext, request: ResponseRequest) -> dict[str, Any]:
    """Variables of the chat template: those that ``reasoning`` sets, then the caller's own."""
    effort = request.reasoning.effort if request.reasoning else None
    wanted = None if effort is None else effort != "none"
    return {
        **template_switch(context, wanted, "reasoning"),
        **(request.chat_template_kwargs or {}),
    }


def _turn(
    response_id: str,
    request: ResponseRequest,
    items: Sequence[Item],
    variables: dict[str, Any],
) -> TurnRequest:
    tools, choice = asked_tools(request)
    return TurnRequest(
        id=response_id,
        messages=to_messages(request.instructions, items),
        sampling=_sampling(request),
        template=TemplateFields(chat_template_kwargs=variables),
        max_tokens=request.max_output_tokens,
        logprobs=_logprobs(request),
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        grammar=_grammar(request),
        messages_param="input",
    )


def _grammar(request: ResponseRequest) -> GrammarSpec | None:
    """What the text must look like, if ``text.format`` says so."""
    asked = request.text.format if request.text else None
    if asked is None or asked.type == "text":
        return None
    if asked.type == "json_object":
        return GrammarSpec("json_object", param="text")
    return GrammarSpec("json_schema", json.dumps(asked.schema_), param="text")


def _sampling(request: ResponseRequest) -> GenerationFields:
    return GenerationFields(
        model=request.model,
        temperature=request.temperature,
        top_p=request.top_p,
        seed=request.seed,
        top_k=request.top_k,
        min_p=request.min_p,
        repetition_penalty=request.repetition_penalty,
        cache_salt=request.cache_salt,
        priority=request.priority,
    )


def _logprobs(request: ResponseRequest) -> int | None:
    return (request.top_logprobs or 0) if MESSAGE_LOGPROBS in (request.include or ()) else None


def _check(request: ResponseRequest, store: ResponseStore) -> None:
    """Rules between fields, and values that are not supported. Raises ApiError (400)."""
    for value in request.include or ():
        if value != MESSAGE_LOGPROBS:
            raise bad_field("include", f"with {value[:60]!r} is not supported")
    if request.top_logprobs and not request.include:
        raise bad_field("top_logprobs", f"needs include with {MESSAGE_LOGPROBS!r}")
    if request.stream_options is not None and not request.stream:
        raise bad_field("stream_options", "is only allowed when stream is true")
    if request.store and not store.keeps:
        raise bad_field("store", "is not possible: the server keeps no responses")


def _conversation(
    store: ResponseStore, owner: bytes, response_id: str | None
) -> tuple[Exchange, ...]:
    """The exchanges of the response to go on from. Raises ApiError (404) when it is not kept."""
    if response_id is None:
        return ()
    previous = store.get(owner, response_id)
    if previous is None:
        raise previous_not_found(response_id)
    return previous.conversation


def _items(conversation: Sequence[Exchange]) -> list[Item]:
    """The items of kept exchanges."""
    kept = [item for exchange in conversation for item in exchange.items]
    return STORED_ITEMS.validate_python(kept)
