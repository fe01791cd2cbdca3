"""One turn of the assistant, independent of the wire form: what every chat-like endpoint runs.

``start_turn`` checks a ``TurnRequest``, renders and tokenizes the conversation and submits it.
The ``Turn`` that it returns yields lists of typed events (``app.serving.events``) and counts
tokens. An endpoint turns its body into a ``TurnRequest`` and writes the events in its own form::

    turn = await start_turn(context, TurnRequest(id=..., messages=..., sampling=...))
    try:
        async with aclosing(turn.events()) as batches:
            async for events in batches:
                for event in events:
                    match event: ...
        usage = turn.usage()
    finally:
        turn.close()

``Turn.stream`` gives the same as bytes to send. ``app.serving.respond.respond`` does the outer part
over HTTP: it takes an object with ``stream``, ``whole`` and ``close`` (``ChatAnswer`` is an
example) and aborts when the client leaves.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from app.errors import bad_field
from app.protocol.chat import Message, TemplateFields
from app.protocol.sampling import GenerationFields
from app.protocol.tools import AUTO, FunctionTool, ToolChoice
from app.serving.answer_stream import AnswerStream
from app.serving.assemble import Piece
from app.serving.context import ServingContext
from app.serving.events import Finish, FinishKind, TextDelta, TurnEvent
from app.serving.generation import Generation
from app.serving.limits import completion_budget
from app.serving.logprobs import TokenLabels
from app.serving.prompts import chat_prompt
from app.serving.rules import check_choices, may_reason
from app.serving.sampling import sampling_params
from app.serving.start import PromptStart, start
from app.serving.structured import asked_grammar, compiled
from app.serving.wire import Usage
from engine.types import GrammarSpec, SamplingParams, TokenLogprobs

if TYPE_CHECKING:
    from app.serving.reader import ReadingPlan

PromptLogprobs = tuple[TokenLogprobs | None, ...]


class TurnRequest(Struct, frozen=True):
    """What to generate.

    id: unique; names the sequences in the engine (use the answer's id). sampling: n, stops and
    everything that ``sampling_params`` reads; its ``model``, ``stream`` and ``max_tokens`` are not
    read here. max_tokens: refused when the context has no room for as many; None: ``most_tokens``,
    which are cut to what is left of the context; None: all that is left. logprobs: alternatives
    per token, None: no log probabilities. tools, tool_choice, parallel_tool_calls: as OpenAI means
    them. grammar: what the text must look like, where the endpoint's field for it is not one of
    ``sampling``. messages_param: the field that errors about the conversation name.
    """

    id: str
    messages: Sequence[Message]
    sampling: GenerationFields
    template: TemplateFields = field(default_factory=TemplateFields)
    max_tokens: int | None = None
    most_tokens: int | None = None
    grammar: GrammarSpec | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    tools: Sequence[FunctionTool] = ()
    tool_choice: ToolChoice = AUTO
    parallel_tool_calls: bool = True
    messages_param: str = "messages"

    @property
    def offered(self) -> Sequence[FunctionTool]:
        """The tools that the model is told of."""
        return () if self.tool_choice.mode == "none" else self.tools


class Turn:
    """A running turn of ``choices`` choices; its owner calls ``close``."""

    def __init__(
        self, generation: Generation, prompt_ids: tuple[int, ...], labels: TokenLabels, choices: int
    ) -> None:
        self.prompt_ids = prompt_ids
        self.labels = labels
        self.choices = choices
        self.prompt_logprobs: PromptLogprobs | None = None
        self._generation = generation

    @property
    def finished(self) -> bool:
        """True when every choice has ended."""
        return self._generation.finished

    def close(self) -> None:
        """Abort what still runs; harmless when called again."""
        self._generation.close()

    def usage(self) -> Usage:
        """Token counts; complete once the turn has finished."""
        generation = self._generation
        return Usage(
            len(self.prompt_ids),
            generation.completion_tokens,
            generation.cached_tokens((0,)),
            generation.reasoning_tokens,
        )

    async def events(self) -> AsyncGenerator[list[TurnEvent], None]:
        """What the choices add, in the order of arrival; all that is there at one wake-up.

        ``prompt_logprobs``, if asked for, are set before the first list is yielded. Raises
        ApiError when the engine gives a choice up.
        """
        async with aclosing(self._generation.pieces()) as batches:
            async for pieces in batches:
                yield self._read(pieces)

    def stream(self, render: Callable[[Sequence[TurnEvent]], str], first: str = "") -> AnswerStream:
        """The turn as it is sent: ``render`` writes events as text, ``first`` precedes them all."""
        return AnswerStream(
            self._generation, lambda pieces: render(self._read(pieces)), first.encode()
        )

    def _read(self, pieces: Sequence[Piece]) -> list[TurnEvent]:
        """The events of pieces."""
        events: list[TurnEvent] = []
        for piece in pieces:
            if piece.prompt_logprobs is not None:
                self.prompt_logprobs = piece.prompt_logprobs
            _add_events(events, piece)
        return events


def _add_events(events: list[TurnEvent], piece: Piece) -> None:
    """Append the events of a piece; text without a reader is its own event."""
    index = piece.index
    if piece.events is None:
        if piece.text or piece.entries or piece.token_ids:
            events.append(TextDelta(index, piece.text, piece.entries, piece.token_ids))
    else:
        if piece.entries or piece.token_ids:
            events.append(TextDelta(index, "", piece.entries, piece.token_ids))
        events.extend(piece.events)
    if piece.finish is not None:
        events.append(Finish(index, _KINDS[piece.finish], piece.stop))


_KINDS: dict[str, FinishKind] = {"stop": "stop", "length": "length", "tool_calls": "tool_calls"}


async def start_turn(context: ServingContext, request: TurnRequest) -> Turn:
    """Check, render, tokenize and submit. Raises ApiError or RequestError; nothing runs then."""
    choices = request.sampling.n or 1
    check_choices(context, 1, choices)
    prompt = await chat_prompt(context, request.messages, request.template, request.offered)
    if not prompt.ids:
        raise bad_field(request.messages_param, "are rendered to a prompt without tokens")
    spec, reading = _plan(context, request, prompt.text)
    grammar = await compiled(context, spec)
    params = _params(context, request, prompt.ids, spec)
    continued = prompt.ids if request.template.continue_final_message else ()
    begin = PromptStart(prompt.ids, continued, params, grammar, reading)
    generation = start(context, request.sampling, request.id, [begin], choices)
    return Turn(generation, prompt.ids, TokenLabels(context.text.tokenizer), choices)


def _plan(
    context: ServingContext, request: TurnRequest, prompt: str
) -> "tuple[GrammarSpec | None, ReadingPlan | None]":
    """The grammar of answers, and how they are read."""
    tools, choice = request.offered, request.tool_choice
    grammar = request.grammar or asked_grammar(request.sampling)
    if not tools and not may_reason(context):
        return grammar, None
    # Plain answers of models that do not reason need none of this: starts stay short.
    from app.serving import reading

    forced = bool(tools) and choice.forced
    if grammar is not None and forced:
        raise bad_field("tool_choice", f"of this kind and {grammar.param} exclude each other")
    continues = request.messages[-1].text if request.template.continue_final_message else None
    plan = reading.reading_plan(context, prompt, continues, grammar=forced or grammar is not None)
    parallel = request.parallel_tool_calls
    if forced:
        grammar = reading.calls_grammar(plan, tools, choice, parallel=parallel)
    elif grammar is not None and grammar.after is None:
        grammar = replace(grammar, after=reading.reasoning_end(plan))
    if tools:
        plan = reading.with_calls(plan, context, tools, choice, parallel=parallel)
    return grammar, plan


def _params(
    context: ServingContext,
    request: TurnRequest,
    prompt: tuple[int, ...],
    grammar: GrammarSpec | None,
) -> SamplingParams:
    model = context.engine.model
    budget = completion_budget(
        len(prompt),
        request.max_tokens,
        request.most_tokens,
        model.context_length,
        request.messages_param,
    )
    return sampling_params(
        request.sampling,
        max_tokens=budget,
        vocab_size=model.vocab_size,
        defaults=context.text.info.generation,
        logprobs=request.logprobs,
        prompt_logprobs=request.prompt_logprobs,
        grammar=grammar,
    )
