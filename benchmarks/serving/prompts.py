"""Random prompts of a known number of tokens, no two alike, so that no prefix is ever cached."""

import random
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

WORDS = 6000
MARKS = ("\u0120", "\u2581")  # how byte-level and SentencePiece vocabularies write a leading space


def words_of_one_token(tokenizer: Tokenizer) -> list[str]:
    """Lower-case English-looking words that are one token after a space, sorted."""
    pieces = (piece for piece in tokenizer.get_vocab() if piece.startswith(MARKS))
    words = sorted(piece[1:] for piece in pieces if _plain(piece[1:]))
    encoded = tokenizer.encode_batch([f" {word}" for word in words], add_special_tokens=False)
    return [word for word, one in zip(words, encoded, strict=True) if len(one.ids) == 1]


def _plain(word: str) -> bool:
    return word.isascii() and word.isalpha() and word.islower() and 3 <= len(word) <= 8


class Prompts:
    """Draws prompts from one seed; every server of a round gets the same ones."""

    def __init__(self, words: Sequence[str], seed: int) -> None:
        self._words = words
        self._random = random.Random(seed)

    def draw(self, tokens: int) -> str:
        """A prompt of ``tokens`` tokens (plus the start token, where a server adds one)."""
        return "".join(f" {self._random.choice(self._words)}" for _ in range(tokens))


def load_words(tokenizer_json: Path) -> list[str]:
    """The words of a tokenizer.json file, at most WORDS of them in a fixed random order."""
    words = words_of_one_token(Tokenizer.from_file(str(tokenizer_json)))
    random.Random(1).shuffle(words)
    return words[:WORDS]
