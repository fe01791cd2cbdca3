"""Incremental decoding: whole characters, spaces, special tokens, per-token pieces."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.text.detokenizer import IncrementalDetokenizer
from engine.text.info import PieceRules
from engine.text.pieces import PieceTable, byte_alphabet

SPACE_MARK = "\u2581"
LETTER_OF = {byte: char for char, byte in byte_alphabet().items()}
BYTE_LEVEL = PieceRules("byte_level")
FALLBACK = PieceRules("sentencepiece", byte_fallback=True, strip_space=True)
END = 999
SP_PIECES = [f"<0x{byte:02X}>" for byte in range(256)] + [
    SPACE_MARK + "Da",
    "ener",
    "ys",
    SPACE_MARK + "is",
    SPACE_MARK + "here",
    SPACE_MARK,
]


def byte_level(token_id: int) -> str | None:
    return LETTER_OF.get(token_id)


def sentencepiece(token_id: int) -> str | None:
    return SP_PIECES[token_id] if token_id < len(SP_PIECES) else None


def decoder(rules: PieceRules, hidden: frozenset[int] = frozenset()) -> IncrementalDetokenizer:
    lookup = byte_level if rules.kind == "byte_level" else sentencepiece
    table = PieceTable(lookup, {END: "<|end|>"}, rules)
    return IncrementalDetokenizer(table, hidden, strip_space=rules.strip_space)


@pytest.mark.parametrize("rules", [BYTE_LEVEL, FALLBACK])
def test_interleaved_streams_of_single_bytes_give_whole_characters(rules: PieceRules) -> None:
    streams = {"\U0001f600": decoder(rules), "\u4e2d": decoder(rules)}
    sent: dict[str, list[str]] = {char: [] for char in streams}
    for step in range(4):
        for char, detokenizer in streams.items():
            data = char.encode()
            if step < len(data):
                sent[char].append(detokenizer.push([data[step]]))
    for char, pieces in sent.items():
        assert [piece for piece in pieces if piece] == [char]
        assert streams[char].flush() == ""


def test_a_broken_end_is_replaced_only_by_flush() -> None:
    detokenizer = decoder(BYTE_LEVEL)
    assert detokenizer.push([0x61, 0xF0, 0x9F]) == "a"
    assert detokenizer.flush() == "\ufffd"


def test_broken_bytes_in_the_middle_do_not_hold_back_what_follows() -> None:
    detokenizer = decoder(BYTE_LEVEL)
    assert detokenizer.push([0xE4, 0xB8]) == ""
    assert detokenizer.push([0x61]) == "\ufffda"
    assert detokenizer.push([0xFF]) == "\ufffd"


def test_sentencepiece_drops_one_space_at_the_very_start() -> None:
    ids = [256, 257, 258, 259, 260]
    assert decoder(FALLBACK).push(ids) == "Daenerys is here"
    assert decoder(FALLBACK).push_pieces(ids) == ["Da", "ener", "ys", " is", " here"]
    assert decoder(FALLBACK).push([261, 256]) == " Da"


def test_special_tokens_are_hidden_or_shown() -> None:
    assert decoder(BYTE_LEVEL, frozenset([END])).push([0x61, END, 0x62]) == "ab"
    assert decoder(BYTE_LEVEL).push([0x61, END, 0x62]) == "a<|end|>b"


def test_a_hidden_token_does_not_use_up_the_first_space() -> None:
    assert decoder(FALLBACK, frozenset([END])).push_pieces([END, 256]) == ["", "Da"]


def test_unknown_ids_are_no_text() -> None:
    assert decoder(BYTE_LEVEL).push([0x61, 5000, -3, 1 << 70, 0x62]) == "ab"


def test_pieces_tell_which_token_completed_a_character() -> None:
    data = list("a\u00e9\U0001f600".encode())
    assert decoder(BYTE_LEVEL).push_pieces(data) == ["a", "", "\u00e9", "", "", "", "\U0001f600"]


def test_an_added_token_stands_for_itself_in_a_byte_level_vocabulary() -> None:
    table = PieceTable(byte_level, {300: "\u00e9 x"}, BYTE_LEVEL)
    assert table[300] == "\u00e9 x".encode()


@given(st.binary(max_size=40), st.lists(st.integers(0, 40), max_size=6))
def test_any_split_equals_decoding_at_once(data: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    detokenizer = decoder(BYTE_LEVEL)
    parts = [
        detokenizer.push_one(data[a]) if b - a == 1 else detokenizer.push(data[a:b])
        for a, b in pairwise(edges)
    ]
    assert "".join(parts) + detokenizer.flush() == data.decode(errors="replace")


@given(st.text(max_size=20))
def test_valid_text_never_shows_a_replacement(text: str) -> None:
    detokenizer = decoder(BYTE_LEVEL)
    pieces = detokenizer.push_pieces(text.encode())
    assert "".join(pieces) == text
    assert detokenizer.flush() == ""
