"""Chat completion chunks, written from a turn's events."""

from app.serving.events import (
    CallArguments,
    CallStart,
    Finish,
    ReasoningDelta,
    TextDelta,
    TurnEvent,
)
from app.serving.logprobs import chat_entries
from app.serving.turn import Turn
from app.serving.wire import AnswerHead, Usage, compact, event, quoted


class ChatChunks:
    """Writes chat completion chunks; the common one, text alone, is one string concatenation."""

    def __init__(
        self, head: AnswerHead, turn: Turn, logprobs: bool, token_ids: bool, *, usage_chunk: bool
    ) -> None:
        self._turn = turn
        self._logprobs = logprobs
        self._token_ids = token_ids
        self._fields = head.fields("chat.completion.chunk")
        self._prefix = "data: " + compact(self._fields)[:-1] + ',"choices":[{"index":'
        self._tail = ',"usage":null}\n\n' if usage_chunk else "}\n\n"
        self._started = [False] * turn.choices
        self._plain = not (logprobs or token_ids)
        self._plain_end = f'}},"logprobs":null,"finish_reason":null}}]{self._tail}'
        self._held_ids: list[list[int]] = [[] for _ in range(turn.choices)]

    def chunk(self, piece: TurnEvent) -> str:
        """Role chunk before a choice's first event, then deltas, then the finish chunk."""
        index = piece.index
        if self._plain and type(piece) is TextDelta and self._started[index]:
            if not piece.text:
                return ""
            return (
                f'{self._prefix}{index},"delta":{{"content":{quoted(piece.text)}{self._plain_end}'
            )
        text = "" if self._started[index] else self._role(index)
        if type(piece) is TextDelta:
            return text + self._text(piece)
        if type(piece) is Finish:
            return text + self._choice(index, "{}", "null", f'"{piece.reason}"')
        delta = _delta(piece)
        return text + self._choice(index, delta, "null", "null") if delta else text

    def usage(self, usage: Usage) -> str:
        """The chunk without choices that ends a stream with usage."""
        return event({**self._fields, "choices": [], "usage": usage.as_json()})

    def _role(self, index: int) -> str:
        self._started[index] = True
        extra = ""
        if self._token_ids and index == 0:
            extra = f',"prompt_token_ids":{compact(self._turn.prompt_ids)}'
        delta = '{"role":"assistant","content":""}'
        return self._choice(index, delta, "null", "null", extra)

    def _text(self, piece: TextDelta) -> str:
        if self._token_ids:
            self._held_ids[piece.index].extend(piece.token_ids)
        if not piece.text and not piece.entries:
            return ""
        logprobs = "null"
        if self._logprobs:
            entries = chat_entries(self._turn.labels, piece.entries)
            logprobs = compact({"content": entries, "refusal": None})
        return self._choice(piece.index, f'{{"content":{quoted(piece.text)}}}', logprobs, "null")

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


def _delta(piece: TurnEvent) -> str:
    """The delta of what is not text; id, type and name of a call come once. Empty: none."""
    match piece:
        case ReasoningDelta():
            return f'{{"reasoning_content":{quoted(piece.text)}}}'
        case CallStart():
            function = {"name": piece.name, "arguments": ""}
            call = {"index": piece.call, "id": piece.id, "type": "function", "function": function}
            return compact({"tool_calls": [call]})
        case CallArguments():
            part = {"index": piece.call, "function": {"arguments": piece.text}}
            return compact({"tool_calls": [part]})
    return ""
