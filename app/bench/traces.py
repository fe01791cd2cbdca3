"""Traces of requests: JSON lines with texts (as ShareGPT's) or with lengths (as Mooncake's)."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.bench.words import words
from app.bench.workloads import Load, Request, arriving
from engine.errors import SettingsError

BLOCK = 512  # tokens that one of a trace's hash ids stands for
OUTPUT = 128  # tokens asked for where a line names no length
TOKENS_PER_WORD = 4 / 3  # of English text, about


class LineError(ValueError):
    """What is wrong with one line."""


def read_trace(path: Path) -> list[Request]:
    """The requests of a file, in its order; blank lines are skipped.

    A line is an object. Its prompt is ``prompt``, or the first human turn of ``conversations``,
    or words drawn to ``input_length`` tokens, where equal ``hash_ids`` give equal blocks of 512
    tokens. Its output is ``output_length`` or ``max_tokens``, or the length of the turn that
    answers, or 128 tokens. ``timestamp``: milliseconds; all lines have one or none. Raises
    SettingsError with the number of the line, and for a file that cannot be read or is empty.
    """
    requests: list[Request] = []
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    requests.append(_numbered(path, number, line, len(requests)))
    except (OSError, UnicodeDecodeError) as exc:
        raise SettingsError(f"cannot read the trace {path}: {exc}") from exc
    if not requests:
        raise SettingsError(f"the trace {path} holds no request")
    timed = sum(request.at is not None for request in requests)
    if timed not in (0, len(requests)):
        raise SettingsError(f"{path}: {timed} of {len(requests)} lines have a timestamp")
    return requests


def trace_requests(trace: Sequence[Request], load: Load) -> list[Request]:
    """The first ``load.requests`` of a trace, due at its timestamps or, with a rate, at that."""
    taken = list(trace[: load.requests])
    if load.rate is not None:
        return arriving(taken, load)
    if taken[0].at is None:
        return taken
    first = min(request.at or 0.0 for request in taken)
    return [replace(request, at=(request.at or 0.0) - first) for request in taken]


def _numbered(path: Path, number: int, line: str, index: int) -> Request:
    try:
        data = json.loads(line)
        if not isinstance(data, dict):
            raise LineError("not an object")
        return _request(data, index)
    except (LineError, json.JSONDecodeError) as exc:
        raise SettingsError(f"{path}, line {number}: {exc}") from exc


def _request(data: Mapping[str, Any], index: int) -> Request:
    prompt, tokens, answer = _prompt(data, index)
    output = _whole(data, "output_length") or _whole(data, "max_tokens") or answer or OUTPUT
    return Request(prompt, tokens, output, _seconds(data))


def _prompt(data: Mapping[str, Any], index: int) -> tuple[str, int, int]:
    """The text, its tokens, and those of the answer, where the line holds one."""
    if "prompt" in data:
        text = _text(data["prompt"], "prompt")
        return text, _tokens(text), 0
    if "conversations" in data:
        question, answer = _turns(data["conversations"])
        return question, _tokens(question), _tokens(answer) if answer else 0
    length = _whole(data, "input_length")
    if length is None:
        raise LineError("it has no prompt, conversations or input_length")
    return _drawn(length, data.get("hash_ids", []), index), length, 0


def _turns(turns: object) -> tuple[str, str]:
    """The first human turn, and the turn behind it."""
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise LineError("conversations is not a list of objects")
    for i, turn in enumerate(turns):
        if turn.get("from") in ("human", "user"):
            answer = turns[i + 1].get("value", "") if i + 1 < len(turns) else ""
            return _text(turn.get("value"), "value"), str(answer)
    raise LineError("conversations has no turn from a human")


def _drawn(length: int, ids: object, index: int) -> str:
    if not isinstance(ids, list) or not all(type(i) is int for i in ids):
        raise LineError("hash_ids is not a list of whole numbers")
    if len(ids) > -(-length // BLOCK):
        raise LineError(f"{len(ids)} hash_ids are more than {length} tokens take")
    sizes = [min(BLOCK, length - BLOCK * i) for i in range(len(ids))]
    blocks = [words(size, f"block {i}") for size, i in zip(sizes, ids, strict=True)]
    rest = length - sum(sizes)
    return "".join(blocks) + (words(rest, f"line {index}") if rest else "")


def _tokens(text: str) -> int:
    return max(1, round(len(text.split()) * TOKENS_PER_WORD))


def _text(value: object, name: str) -> str:
    if not isinstance(value, str) or not value:
        raise LineError(f"{name} is not a text, or is empty")
    return value


def _whole(data: Mapping[str, Any], name: str) -> int | None:
    value = data.get(name)
    if value is None:
        return None
    if type(value) is not int or not 1 <= value <= 10**7:
        raise LineError(f"{name} must be a whole number from 1, not {json.dumps(value)}")
    return value


def _seconds(data: Mapping[str, Any]) -> float | None:
    value = data.get("timestamp")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e15:
        raise LineError(f"timestamp must be milliseconds from 0, not {json.dumps(value)}")
    return float(value) / 1000
