"""Token ids to text, a few at a time, with whole characters only."""

import codecs
from collections.abc import Iterable, Sequence

from engine.text.pieces import PieceTable

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class IncrementalDetokenizer:
    """Decoder state of one sequence: O(1) work per token.

    Works on bytes, so a character that several tokens spell appears whole, with the token that
    completes it. Bytes that are not UTF-8 become U+FFFD only when what follows, or the end of the
    sequence, proves them wrong. ``hidden`` ids add no text (special tokens). ``strip_space``: one
    space at the very start is dropped. ``pending``: bytes of an unfinished character before it.
    """

    __slots__ = ("_decoder", "_hidden", "_pieces", "_strip", "_whole")

    def __init__(
        self,
        pieces: PieceTable,
        hidden: frozenset[int],
        *,
        strip_space: bool,
        pending: bytes = b"",
    ) -> None:
        self._pieces = pieces
        self._hidden = hidden
        self._strip = strip_space
        self._decoder = _Utf8Decoder("replace")
        self._decoder.decode(pending)
        self._whole = not pending  # no byte of an unfinished character waits in the decoder

    def push(self, token_ids: Iterable[int]) -> str:
        """Return the text that these tokens complete (possibly empty)."""
        pieces, hidden = self._pieces, self._hidden
        data = b"".join([pieces[i] for i in token_ids if i not in hidden])
        if self._strip and data:
            self._strip = False
            data = data.removeprefix(b" ")
        self._whole = False  # found out by ``push_one``
        return self._decoder.decode(data)

    def push_one(self, token_id: int) -> str:
        """``push`` of one token; plain ASCII between whole characters needs no decoder."""
        if self._whole and not self._strip and token_id not in self._hidden:
            piece = self._pieces[token_id]
            if piece.isascii():
                return piece.decode("ascii")
        text = self.push((token_id,))
        self._whole = not self._decoder.getstate()[0]
        return text

    def push_pieces(self, token_ids: Iterable[int]) -> list[str]:
        """Like ``push``, token by token: entry i is what token i completed. Joined: the same."""
        return [self.push_one(token_id) for token_id in token_ids]

    def flush(self) -> str:
        """End the sequence: an unfinished character becomes U+FFFD. Call it once."""
        return self._decoder.decode(b"", final=True)


def unfinished_tail(pieces: PieceTable, token_ids: Sequence[int], hidden: frozenset[int]) -> bytes:
    """Return the bytes of the character that the tokens begin but do not finish (0 to 3 bytes)."""
    tail = b""
    for token_id in reversed(token_ids):
        if token_id not in hidden:
            tail = pieces[token_id] + tail
        if len(tail) >= 4:
            break
    decoder = _Utf8Decoder("replace")
    decoder.decode(tail)
    return decoder.getstate()[0]
