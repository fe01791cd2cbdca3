"""The API reference lists exactly the fields that the protocol knows."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from app.protocol.body import Refused
from app.protocol.chat import CHAT_REFUSED, ChatRequest, Message
from app.protocol.completions import COMPLETION_REFUSED, CompletionRequest
from app.protocol.messages import MESSAGE_REFUSED, MessageRequest
from app.protocol.responses import RESPONSE_REFUSED, ResponseRequest
from app.protocol.sampling import REFUSED, GenerationFields
from app.protocol.structured import StructuredFields
from app.protocol.tokenize import DetokenizeRequest, TokenizeRequest

DOCUMENT = Path(__file__).parents[2] / "docs" / "api.md"
SHARED, CHAT = "Shared fields", "POST /v1/chat/completions"
TEXT, BOTH = "POST /v1/completions", "Refused on both endpoints"


def tables(section: str) -> list[dict[str, list[str]]]:
    """The tables of a section: name in the first column -> the other columns."""
    text = re.split(r"^## ", DOCUMENT.read_text(), flags=re.MULTILINE)
    (body,) = [part for part in text if part.partition("\n")[0] == section]
    blocks = re.findall(r"(?:^\|.*\n)+", body, flags=re.MULTILINE)
    return [_rows(block) for block in blocks]


def _rows(block: str) -> dict[str, list[str]]:
    lines = block.splitlines()[2:]
    cells = [[c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return {row[0].strip("`"): row[1:] for row in cells}


@pytest.mark.parametrize(
    ("section", "index", "fields"),
    [
        (SHARED, 0, set(GenerationFields.model_fields) - set(StructuredFields.model_fields)),
        (CHAT, 0, (set(ChatRequest.model_fields) - set(GenerationFields.model_fields))),
        (CHAT, 1, set(Message.model_fields)),
        (TEXT, 0, (set(CompletionRequest.model_fields) - set(GenerationFields.model_fields))),
        ("POST /v1/responses", 0, set(ResponseRequest.model_fields)),
        ("POST /v1/messages", 0, set(MessageRequest.model_fields)),
        ("POST /tokenize", 0, set(TokenizeRequest.model_fields)),
        ("POST /detokenize", 0, set(DetokenizeRequest.model_fields)),
    ],
)
def test_fields(section: str, index: int, fields: set[str]) -> None:
    assert set(tables(section)[index]) == fields


@pytest.mark.parametrize(
    ("section", "index", "rules"),
    [
        (CHAT, 2, {k: v for k, v in CHAT_REFUSED.items() if k not in REFUSED}),
        (TEXT, 1, {k: v for k, v in COMPLETION_REFUSED.items() if k not in REFUSED}),
        (BOTH, 0, REFUSED),
        ("POST /v1/responses", 2, RESPONSE_REFUSED),
        ("POST /v1/messages", 2, MESSAGE_REFUSED),
    ],
)
def test_refused_fields(section: str, index: int, rules: Mapping[str, Refused]) -> None:
    listed = tables(section)[index]
    assert set(listed) == set(rules)
    for name, rule in rules.items():
        values = [json.loads(v.strip("`")) for v in listed[name][0].split(", ")]
        assert values == [None, *rule.neutral], name
