"""``text.json``: round trip and strict reading."""

import json
from typing import Any

import pytest

from engine.errors import CoreError
from engine.text.info import GenerationDefaults, PieceRules, TextInfo, info_bytes, parse_info

INFO = TextInfo(
    vocab_size=10,
    add_bos=True,
    bos_id=1,
    eos_ids=(2, 3),
    pieces=PieceRules("sentencepiece", True, True),
    special_tokens={"bos_token": "<s>", "eos_token": "</s>"},
    generation=GenerationDefaults(temperature=0.6, top_k=20),
)


def changed(**changes: Any) -> bytes:
    return json.dumps({**json.loads(info_bytes(INFO)), **changes}).encode()


def test_round_trip() -> None:
    assert parse_info(info_bytes(INFO)) == INFO


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"surprise": 1}, "surprise"),
        ({"vocab_size": "10"}, "vocab_size"),
        ({"vocab_size": 0}, "vocab_size"),
        ({"add_bos": 1}, "add_bos"),
        ({"bos_id": None}, "bos_id"),
        ({"bos_id": 10}, "bos_id"),
        ({"eos_ids": [2, -1]}, "eos_ids"),
        ({"eos_ids": 2}, "eos_ids"),
        ({"pieces": {"kind": "wordpiece", "byte_fallback": False, "strip_space": False}}, "kind"),
        ({"special_tokens": {"bos_token": 1}}, "bos_token"),
        ({"generation": {"temperature": 1.0}}, "generation"),
        ({"chat_template": "yes"}, "chat_template"),
    ],
)
def test_a_fault_names_its_key(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CoreError, match=rf"text\.json.*{message}"):
        parse_info(changed(**changes))


def test_what_is_not_json_is_a_core_error() -> None:
    with pytest.raises(CoreError, match=r"text\.json"):
        parse_info(b"{")
