"""Text completions: request to running generation to whole or streamed answer."""

import math
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from app.errors import INTERNAL_MESSAGE, ApiError, bad_field
from app.protocol.completions import CompletionRequest
from app.serving.answer_stream import AnswerStream
from app.serving.assemble import Piece
from app.serving.context import ServingContext
from app.serving.echo import Echo, echo_of
from app.serving.generation import Generation
from app.serving.limits import completion_budget
from app.serving.logprobs import LogprobLists, TokenLabels, prompt_entries
from app.serving.prompts import completion_prompts, sized
from app.serving.rules import (
    check_choices,
    check_prompt_logprobs,
    check_stream_options,
    includes_usage,
)
from app.serving.sampling import first_seed, sampling_params
from app.serving.start import PromptStart, start
from app.serving.structured import asked_grammar, compiled
from app.serving.wire import AnswerHead, Usage, compact, event, quoted, renderer
from engine.types import GrammarSpec, SamplingParams, TokenLogprobs

DEFAULT_MAX_TOKENS = 16


class CompletionAnswer(Struct, frozen=True):
    """A running text completion; its owner calls ``close``.

    n: choices told per prompt, the best of the ``best_of`` that run. echoes: one per prompt, or
    none. logprobs, prompt_logprobs: alternatives to tell per token; None: nothing is told.
    """

    head: AnswerHead
    generation: Generation
    labels: TokenLabels
    prompts: Sequence[tuple[int, ...]]
    n: int
    best_of: int
    echoes: Sequence[Echo]
    logprobs: int | None
    prompt_logprobs: int | None
    token_ids: bool
    usage_chunk: bool

    @property
    def choices(self) -> int:
        """Number of choices that run."""
        return len(self.prompts) * self.best_of

    def echo(self, index: int) -> Echo | None:
        """What running choice ``index`` repeats of its prompt."""
        return self.echoes[index // self.best_of] if self.echoes else None

    def close(self) -> None:
        """Abort what still runs."""
        self.generation.close()

    def usage(self) -> Usage:
        """Token counts; complete once the generation has finished."""
        firsts = range(0, self.choices, self.best_of)
        return Usage(
            sum(map(len, self.prompts)),
            self.generation.completion_tokens,
            self.generation.cached_tokens(firsts),
        )

    def stream(self) -> AnswerStream:
        """The streamed answer."""
        generation, count = self.generation, self.usage if self.usage_chunk else None
        render = renderer(CompletionChunks(self), lambda: generation.finished, count)
        return AnswerStream(generation, render)

    async def whole(self) -> dict[str, Any]:
        """The answer in one piece."""
        reader = PartReader(self)
        choices = [_Choice() for _ in range(self.choices)]
        async with aclosing(self.generation.pieces()) as batches:
            async for pieces in batches:
                for piece in pieces:
                    choices[piece.index].add(reader.part(piece))
        body = self.head.fields("text_completion")
        told = [choice for group in self._groups(choices) for choice in group]
        body["choices"] = [choice.as_json(index, self) for index, choice in enumerate(told)]
        body["usage"] = self.usage().as_json()
        return body

    def _groups(self, choices: "Sequence[_Choice]") -> "Iterator[Sequence[_Choice]]":
        """The choices to tell of each prompt: all, or the best ones, best first."""
        for first in range(0, self.choices, self.best_of):
            group = choices[first : first + self.best_of]
            if self.best_of > self.n:
                group = sorted(group, key=lambda choice: -choice.mean_logprob)[: self.n]
            yield group


async def start_completion(context: ServingContext, request: CompletionRequest) -> CompletionAnswer:
    """Check, tokenize and submit. Raises ApiError or RequestError; nothing runs then."""
    context.check_model(request.model)
    _check(context, request)
    ids = await completion_prompts(
        context, request.prompts, add_special=request.add_special_tokens is not False
    )
    spec = asked_grammar(request)
    grammar = await compiled(context, spec)
    params = _params(context, request, [len(prompt) for prompt in ids], spec)
    starts = [PromptStart(p, p, own, grammar) for p, own in zip(ids, params, strict=True)]
    head = AnswerHead.new("cmpl", request.model, context.engine.model.core_digest)
    labels = TokenLabels(context.text.tokenizer)
    echoes = await _echoes(context, request, ids) if request.echo else []
    n = request.n or 1
    best_of = request.best_of or n
    return CompletionAnswer(
        head,
        start(context, request, head.id, starts, best_of),
        labels,
        ids,
        n,
        best_of,
        echoes,
        request.logprobs,
        request.prompt_logprobs,
        bool(request.return_token_ids),
        includes_usage(request),
    )


def _check(context: ServingContext, request: CompletionRequest) -> None:
    """Rules between fields. Raises ApiError (400) naming one of them."""
    check_stream_options(request)
    n, best_of = request.n or 1, request.best_of
    if best_of is not None and best_of < n:
        raise ApiError(400, f"best_of is {best_of}, less than n, which is {n}.", param="best_of")
    if best_of is not None and best_of > n and request.stream:
        raise bad_field("best_of", "is not supported when stream is true, unless it equals n")
    check_prompt_logprobs(request)
    check_choices(context, len(request.prompts), best_of or n)


def _params(
    context: ServingContext,
    request: CompletionRequest,
    prompt_tokens: Sequence[int],
    grammar: GrammarSpec | None,
) -> list[SamplingParams]:
    """The parameters of each prompt's choices: only their room and their random seeds differ."""
    model = context.engine.model
    limits = request.max_tokens, DEFAULT_MAX_TOKENS, model.context_length, "prompt"
    budgets = [completion_budget(tokens, *limits) for tokens in prompt_tokens]
    chooses = request.best_of is not None and request.best_of > (request.n or 1)
    asked = [request.prompt_logprobs, request.logprobs if request.echo else None]
    params = sampling_params(
        request,
        max_tokens=min(budgets),
        vocab_size=model.vocab_size,
        defaults=context.text.info.generation,
        logprobs=(request.logprobs or 0) if chooses else request.logprobs,
        prompt_logprobs=max((count for count in asked if count is not None), default=None),
        grammar=grammar,
    )
    return [replace(params, max_tokens=budget, seed=first_seed(request.seed)) for budget in budgets]


async def _echoes(
    context: ServingContext, request: CompletionRequest, ids: Sequence[tuple[int, ...]]
) -> list[Echo]:
    """What each prompt's choices repeat; decoded off the event loop when long."""
    tokenizer = context.text.tokenizer

    def work() -> list[Echo]:
        pairs = zip(request.prompts, ids, strict=True)
        return [echo_of(tokenizer, prompt, tokens) for prompt, tokens in pairs]

    return await sized(sum(map(len, ids)), work)


class Part(Struct, frozen=True):
    """What a piece adds to a choice, with the echo before the first one."""

    text: str
    logprobs: LogprobLists
    piece: Piece


class PartReader:
    """Turns the pieces of all choices into parts: adds echoes, and offsets behind them."""

    def __init__(self, answer: CompletionAnswer) -> None:
        self._answer = answer
        self._started = [False] * answer.choices

    def part(self, piece: Piece) -> Part:
        """The part of a piece."""
        echo = self._answer.echo(piece.index)
        lists, text, labels = LogprobLists(), piece.text, self._answer.labels
        if echo is not None and not self._started[piece.index]:
            text = echo.text + text
            if self._answer.logprobs is not None:
                _add_prompt(lists, labels, echo, piece, self._answer.logprobs)
        self._started[piece.index] = True
        base = 0 if echo is None else len(echo.text)
        for entry in piece.entries:
            lists.add(labels, entry.logprobs, base + entry.start)
        return Part(text, lists, piece)


def _add_prompt(
    lists: LogprobLists, labels: TokenLabels, echo: Echo, piece: Piece, count: int
) -> None:
    """Entries of the prompt's tokens; the first has no log probability."""
    scores = piece.prompt_logprobs or ()
    if len(scores) != len(echo.ids):
        raise ApiError(500, INTERNAL_MESSAGE, type="server_error")
    lists.add_first(labels, echo.ids[0])
    for score, offset in zip(scores[1:], echo.offsets[1:], strict=True):
        if score is not None:
            lists.add(labels, replace(score, top=score.top[:count]), offset)


class _Choice(Struct):
    """What has been collected of one choice."""

    text: list[str] = field(default_factory=list)
    logprobs: LogprobLists = field(default_factory=LogprobLists)
    token_ids: list[int] = field(default_factory=list)
    finish: str | None = None
    prompt_logprobs: tuple[TokenLogprobs | None, ...] = ()
    scores: list[float] = field(default_factory=list)

    def add(self, part: Part) -> None:
        piece = part.piece
        self.text.append(part.text)
        self.logprobs.extend(part.logprobs)
        self.token_ids.extend(piece.token_ids)
        self.finish = piece.finish
        self.prompt_logprobs = piece.prompt_logprobs or self.prompt_logprobs
        self.scores += [entry.logprobs.logprob for entry in piece.entries]

    @property
    def mean_logprob(self) -> float:
        """Of the tokens in the text; an empty one is the worst."""
        return sum(self.scores) / len(self.scores) if self.scores else -math.inf

    def as_json(self, index: int, answer: CompletionAnswer) -> dict[str, Any]:
        body: dict[str, Any] = {
            "index": index,
            "text": "".join(self.text),
            "logprobs": None if answer.logprobs is None else self.logprobs.as_json(),
            "finish_reason": self.finish,
        }
        count = answer.prompt_logprobs
        if count is not None:
            cut = [s and replace(s, top=s.top[:count]) for s in self.prompt_logprobs]
            body["prompt_logprobs"] = prompt_entries(answer.labels, cut)
        if answer.token_ids:
            body["token_ids"] = self.token_ids
            body["prompt_token_ids"] = answer.prompts[index // answer.n]
        return body


class CompletionChunks:
    """Writes text completion chunks; the common one, text alone, is one concatenation."""

    def __init__(self, answer: CompletionAnswer) -> None:
        self._answer = answer
        self._reader = PartReader(answer)
        self._fields = answer.head.fields("text_completion")
        self._prefix = "data: " + compact(self._fields)[:-1] + ',"choices":[{"index":'
        self._tail = ',"usage":null}\n\n' if answer.usage_chunk else "}\n\n"
        self._ids: list[list[int]] = [[] for _ in range(answer.choices)]
        self._told_prompt = [not answer.token_ids] * answer.choices
        self._plain_end = f',"logprobs":null,"finish_reason":null}}]{self._tail}'
        self._plain = not (answer.echoes or answer.token_ids) and answer.logprobs is None

    def chunk(self, piece: Piece) -> str:
        """Text, then the finish chunk; a piece without either sends nothing."""
        if self._plain and piece.finish is None:
            if not piece.text:
                return ""
            return f'{self._prefix}{piece.index},"text":{quoted(piece.text)}{self._plain_end}'
        part = self._reader.part(piece)
        if self._answer.token_ids:
            self._ids[piece.index].extend(piece.token_ids)
        events = ""
        if part.text or part.logprobs.tokens:
            told = self._answer.logprobs is not None
            logprobs = compact(part.logprobs.as_json()) if told else "null"
            events = self._choice(piece.index, quoted(part.text), logprobs, "null")
        if piece.finish is not None:
            events += self._choice(piece.index, '""', "null", f'"{piece.finish}"')
        return events

    def usage(self, usage: Usage) -> str:
        """The chunk without choices that ends a stream with usage."""
        return event({**self._fields, "choices": [], "usage": usage.as_json()})

    def _choice(self, index: int, text: str, logprobs: str, finish: str) -> str:
        """One chunk of one choice from ready JSON parts."""
        ids = self._take_ids(index) if self._answer.token_ids else ""
        return (
            f'{self._prefix}{index},"text":{text},"logprobs":{logprobs},'
            f'"finish_reason":{finish}{ids}}}]{self._tail}'
        )

    def _take_ids(self, index: int) -> str:
        """Ids that no chunk has carried yet, the prompt's with the choice's first chunk."""
        ids, self._ids[index] = self._ids[index], []
        fields = f',"token_ids":{compact(ids)}'
        if not self._told_prompt[index]:
            self._told_prompt[index] = True
            prompt = self._answer.prompts[index // self._answer.n]
            fields += f',"prompt_token_ids":{compact(prompt)}'
        return fields
