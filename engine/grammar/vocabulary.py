"""The tokenizer as llguidance wants it, on the same table of bytes that decodes the output."""

from collections.abc import Collection
from functools import cached_property

from llguidance import LLTokenizer, TokenizerWrapper

from engine.text.tokenizer import Tokenizer


class _Vocabulary(TokenizerWrapper):
    """The attributes that ``LLTokenizer`` reads. Control tokens are never part of a text."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_ids: Collection[int]) -> None:
        # The base class's own constructor only copies these from another object.
        self.is_tokenizer_wrapper = True
        self._tokenizer = tokenizer
        self.tokens = [tokenizer.token_bytes(token_id) for token_id in range(vocab_size)]
        hidden = tokenizer.special_ids | set(eos_ids)
        self.special_token_ids = sorted(i for i in hidden if i < vocab_size)
        self.eos_token_id = min(eos_ids)
        self.bos_token_id = tokenizer.info.bos_id

    def __call__(self, text: str) -> list[int]:
        """Ids whose bytes are exactly those of ``text``: forced text is drawn as they say.

        Some tokenizers put a space before a text; behind a line break they do not.
        """
        wanted = text.encode()
        for anchor in ("", "\n"):
            ids = self._tokenizer.encode(anchor + text, add_special=False, parse_special=False)
            exact = self._last(ids, wanted)
            if exact is not None:
                return exact
        return self._longest_first(wanted)

    def _last(self, ids: list[int], wanted: bytes) -> list[int] | None:
        """The last of the ids, as far as they spell ``wanted``; None when none do."""
        if max(ids, default=0) >= len(self.tokens):  # ids that the model lacks
            return None
        pieces = [self.tokens[token_id] for token_id in ids]
        left, first = sum(map(len, pieces)), 0
        while left > len(wanted):
            left -= len(pieces[first])
            first += 1
        return ids[first:] if b"".join(pieces[first:]) == wanted else None

    def _longest_first(self, wanted: bytes) -> list[int]:
        """The longest piece that fits, over and over; stops where the vocabulary has none."""
        ids, at = [], 0
        while at < len(wanted):
            lengths = range(min(self._longest, len(wanted) - at), 0, -1)
            found = (self._by_bytes.get(wanted[at : at + length]) for length in lengths)
            token_id = next((one for one in found if one is not None), None)
            if token_id is None:
                break
            ids.append(token_id)
            at += len(self.tokens[token_id])
        return ids

    @cached_property
    def _by_bytes(self) -> dict[bytes, int]:
        special = set(self.special_token_ids)
        return {piece: i for i, piece in enumerate(self.tokens) if piece and i not in special}

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._by_bytes))


def native_vocabulary(
    tokenizer: Tokenizer, vocab_size: int, eos_ids: Collection[int]
) -> LLTokenizer:
    """Build llguidance's tokenizer: a third of a second for 50,000 tokens."""
    vocabulary = _Vocabulary(tokenizer, vocab_size, eos_ids)
    return LLTokenizer(vocabulary, n_vocab=vocab_size, eos_token=sorted(eos_ids))
