"""Chat completions: request to running generation to whole or streamed answer."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from app.errors import ApiError
from app.protocol.chat import ChatRequest
from app.serving.assemble import Piece, TokenEntry
from app.serving.context import ServingContext
from app.serving.generation import Generation
from app.serving.limits import completion_budget
from app.serving.logprobs import TokenLabels, chat_entries
from app.serving.prompts import chat_prompt
from app.serving.rules import check_choices, check_stream_options, includes_usage
from app.serving.sampling import sampling_params
from app.serving.start import PromptStart, start
from app.serving.wire import AnswerHead, Usage, compact, event, stream
from engine.types import SamplingParams


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """A running chat completion; its owner calls ``close``."""

    head: AnswerHead
    generation: Generation
    labels: TokenLabels
    prompt_ids: tuple[int, ...]
    choices: int
    logprobs: bool
    token_ids: bool
    usage_chunk: bool

    def close(self) -> None:
        """Abort what still runs."""
        self.generation.close()

    def usage(self) -> Usage:
        """Token counts; complete once the generation has finished."""
        generation = self.generation
        cached = generation.cached_tokens((0,))
        return Usage(len(self.prompt_ids), generation.completion_tokens, cached)

    def events(self) -> AsyncGenerator[bytes, None]:
        """The streamed answer."""
        return stream(self.generation, ChatChunks(self), self.usage if self.usage_chunk else None)

    async def whole(self) -> dict[str, Any]:
        """The answer in one piece."""
        choices = [_Choice() for _ in range(self.choices)]
        async with aclosing(self.generation.pieces()) as batches:
            async for pieces in batches:
                for piece in pieces:
                    choices[piece.index].add(piece)
        body = self.head.fields("chat.completion")
        body["choices"] = [choice.as_json(index, self) for index, choice in enumerate(choices)]
        body["usage"] = self.usage().as_json()
        if self.token_ids:
            body["prompt_token_ids"] = self.prompt_ids
        return body


async def start_chat(context: ServingContext, request: ChatRequest) -> ChatAnswer:
    """Check, render, tokenize and submit. Raises ApiError or RequestError; nothing runs then."""
    context.check_model(request.model)
    _check(context, request)
    prompt_ids = await chat_prompt(context, request.messages, request)
    if not prompt_ids:
        raise ApiError(400, "messages are rendered to a prompt without tokens.", param="messages")
    params = _params(context, request, len(prompt_ids))
    head = AnswerHead.new("chatcmpl", request.model, context.engine.model.core_digest)
    continued = prompt_ids if request.continue_final_message else ()
    generation = start(context, request, head.id, [PromptStart(prompt_ids, continued, params)])
    return ChatAnswer(
        head,
        generation,
        TokenLabels(context.text.tokenizer),
        prompt_ids,
        request.n or 1,
        bool(request.logprobs),
        bool(request.return_token_ids),
        includes_usage(request),
    )


def _check(context: ServingContext, request: ChatRequest) -> None:
    """Rules between fields. Raises ApiError (400) naming one of them."""
    check_stream_options(request)
    check_choices(context, 1, request.n or 1)
    if request.top_logprobs is not None and not request.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs to be true.", param="top_logprobs")
    old, new = request.max_tokens, request.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise ApiError(
            400,
            f"max_completion_tokens is {new} but max_tokens is {old}; give one of them.",
            param="max_completion_tokens",
        )


def _params(context: ServingContext, request: ChatRequest, prompt_tokens: int) -> SamplingParams:
    model = context.engine.model
    asked = request.max_completion_tokens
    if asked is None:
        asked = request.max_tokens
    return sampling_params(
        request,
        max_tokens=completion_budget(prompt_tokens, asked, None, model.context_length, "messages"),
        vocab_size=model.vocab_size,
        defaults=context.text.info.generation,
        logprobs=(request.top_logprobs or 0) if request.logprobs else None,
    )


@dataclass(slots=True)
class _Choice:
    """What has been collected of one choice."""

    text: list[str] = field(default_factory=list)
    entries: list[TokenEntry] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finish: str | None = None

    def add(self, piece: Piece) -> None:
        self.text.append(piece.text)
        self.entries.extend(piece.entries)
        self.token_ids.extend(piece.token_ids)
        self.finish = piece.finish

    def as_json(self, index: int, answer: ChatAnswer) -> dict[str, Any]:
        message = {"role": "assistant", "content": "".join(self.text), "refusal": None}
        entries = chat_entries(answer.labels, self.entries)
        body: dict[str, Any] = {
            "index": index,
            "message": message,
            "logprobs": {"content": entries, "refusal": None} if answer.logprobs else None,
            "finish_reason": self.finish,
        }
        if answer.token_ids:
            body["token_ids"] = self.token_ids
        return body


class ChatChunks:
    """Writes chat completion chunks; the common one, text alone, is one string concatenation."""

    def __init__(self, answer: ChatAnswer) -> None:
        self._answer = answer
        self._fields = answer.head.fields("chat.completion.chunk")
        self._prefix = "data: " + compact(self._fields)[:-1] + ',"choices":[{"index":'
        self._tail = ',"usage":null}\n\n' if answer.usage_chunk else "}\n\n"
        self._started = [False] * answer.choices
        self._held_ids: list[list[int]] = [[] for _ in range(answer.choices)]

    def chunk(self, piece: Piece) -> str:
        """Role chunk before a choice's first piece, then content, then the finish chunk."""
        text = "" if self._started[piece.index] else self._role(piece.index)
        if self._answer.token_ids:
            self._held_ids[piece.index].extend(piece.token_ids)
        if piece.text or piece.entries:
            text += self._content(piece)
        if piece.finish is not None:
            text += self._choice(piece.index, "{}", "null", f'"{piece.finish}"')
        return text

    def usage(self, usage: Usage) -> str:
        """The chunk without choices that ends a stream with usage."""
        return event({**self._fields, "choices": [], "usage": usage.as_json()})

    def _role(self, index: int) -> str:
        self._started[index] = True
        ids = f',"prompt_token_ids":{compact(self._answer.prompt_ids)}'
        extra = ids if self._answer.token_ids and index == 0 else ""
        delta = '{"role":"assistant","content":""}'
        return self._choice(index, delta, "null", "null", extra)

    def _content(self, piece: Piece) -> str:
        logprobs = "null"
        if self._answer.logprobs:
            entries = chat_entries(self._answer.labels, piece.entries)
            logprobs = compact({"content": entries, "refusal": None})
        return self._choice(piece.index, f'{{"content":{compact(piece.text)}}}', logprobs, "null")

    def _choice(self, index: int, delta: str, logprobs: str, finish: str, extra: str = "") -> str:
        """One chunk of one choice from ready JSON parts; ``extra`` are fields of the chunk."""
        ids = ""
        if self._held_ids[index]:
            ids = f',"token_ids":{compact(self._held_ids[index])}'
            self._held_ids[index] = []
        return (
            f'{self._prefix}{index},"delta":{delta},"logprobs":{logprobs},'
            f'"finish_reason":{finish}{ids}}}]{extra}{self._tail}'
        )
