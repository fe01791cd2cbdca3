"""Vocabulary entries as bytes: the table behind decoding, streaming and ``logprobs.bytes``."""

import re
from collections.abc import Callable, Mapping

from engine.text.info import PieceRules

SPACE_MARK = "\u2581"
_BYTE_PIECE = re.compile("<0x([0-9A-F]{2})>")


def byte_alphabet() -> dict[str, int]:
    """GPT-2's byte alphabet: character -> byte.

    Printable Latin-1 characters stand for themselves; the other 68 bytes, in order, are the
    characters from U+0100 on (Radford et al. 2019, the byte-level BPE of GPT-2).
    """
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    alphabet = {chr(byte): byte for byte in plain}
    shifted = (byte for byte in range(256) if byte not in plain)
    return alphabet | {chr(256 + index): byte for index, byte in enumerate(shifted)}


class PieceTable:
    """Token id -> the bytes that it adds to a text. Entries are computed once, when first needed.

    lookup: id -> piece, None for ids that the vocabulary lacks. added: text of added tokens by id;
    in a byte-level vocabulary they stand for themselves. Unknown ids are no bytes at all.
    """

    def __init__(
        self, lookup: Callable[[int], str | None], added: Mapping[int, str], rules: PieceRules
    ) -> None:
        self._lookup = lookup
        self._added = added
        self._rules = rules
        self._alphabet = byte_alphabet() if rules.kind == "byte_level" else {}
        self._known: dict[int, bytes] = {}

    def __getitem__(self, token_id: int) -> bytes:
        known = self._known.get(token_id)
        if known is None:
            known = self._compute(token_id)
            if known:  # ids outside the vocabulary are unbounded: never remembered
                self._known[token_id] = known
        return known

    def _compute(self, token_id: int) -> bytes:
        if not 0 <= token_id < 1 << 32:  # the range that the vocabulary lookup takes
            return b""
        if self._rules.kind == "sentencepiece":
            return self._marked(self._added.get(token_id) or self._lookup(token_id) or "")
        added = self._added.get(token_id)
        return added.encode() if added is not None else self._spelled(self._lookup(token_id) or "")

    def _spelled(self, piece: str) -> bytes:
        try:
            return bytes(map(self._alphabet.__getitem__, piece))
        except KeyError:  # an entry that is not spelled in the alphabet is plain text
            return piece.encode()

    def _marked(self, piece: str) -> bytes:
        byte = _BYTE_PIECE.fullmatch(piece) if self._rules.byte_fallback else None
        return bytes([int(byte[1], 16)]) if byte else piece.replace(SPACE_MARK, " ").encode()
