"""SentencePiece BPE vocabularies (GGUF ``tokenizer.ggml.model`` "llama") as a ``tokenizer.json``.

SentencePiece merges, at each step, the neighbours whose joined piece has the highest score (Kudo
and Richardson 2018). The ``tokenizers`` library wants that order as a list of merges.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from engine.errors import CheckpointError
from engine.export.tokenizer.document import bpe_model, document
from engine.export.tokenizer.vocabulary import PREFIX, TokenType, Vocabulary, flag, numbers
from engine.text.info import PieceRules
from engine.text.pieces import SPACE_MARK

MAX_PIECE = 1024
"""Characters of the longest piece; each of its cuts may be a merge."""
_MERGED = (TokenType.NORMAL, TokenType.USER_DEFINED)
"""Types that text may merge to. A control token must never come out of ordinary text."""


def sentencepiece_rules(source: str, metadata: Mapping[str, Any]) -> PieceRules:
    """Return how pieces become text; the prefix space is there unless the file says otherwise."""
    return PieceRules("sentencepiece", True, flag(source, metadata, "add_space_prefix", True))


def sentencepiece_document(
    source: str,
    metadata: Mapping[str, Any],
    vocabulary: Vocabulary,
    added: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Return the ``tokenizer.json`` content. Raises CheckpointError."""
    _check_bytes(source, vocabulary)
    longest = max(map(len, vocabulary.tokens))
    if longest > MAX_PIECE:
        raise CheckpointError(f"{source}: {PREFIX}tokens has a piece of {longest} characters")
    scores = _scores(source, metadata, len(vocabulary.tokens))
    model = bpe_model(
        vocabulary.ids, merges_by_score(vocabulary, scores), byte_fallback=True, fuse_unk=True
    )
    prefix = sentencepiece_rules(source, metadata).strip_space
    return document(
        model,
        added,
        normalizer=None,
        pre_tokenizer={
            "type": "Metaspace",
            "replacement": SPACE_MARK,
            "prepend_scheme": "first" if prefix else "never",
            "split": False,
        },
        decoder=_decoder(prefix),
    )


def merges_by_score(vocabulary: Vocabulary, scores: Sequence[float]) -> list[tuple[str, str]]:
    """Return every pair of pieces that joins to a piece, the best score first.

    Ties: the longer left part first, then the longer right part, then the order of the pieces.
    """
    ids = vocabulary.ids
    found: list[tuple[float, int, int, int, str, str]] = []
    for index, piece in enumerate(vocabulary.tokens):
        if vocabulary.types[index] not in _MERGED:
            continue
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in ids and right in ids:
                found.append((-scores[index], -cut, -len(right), index, left, right))
    found.sort()
    return [(left, right) for *_, left, right in found]


def _decoder(prefix: bool) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": SPACE_MARK}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefix:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {"type": "Sequence", "decoders": steps}


def _check_bytes(source: str, vocabulary: Vocabulary) -> None:
    missing = [byte for byte in range(256) if f"<0x{byte:02X}>" not in vocabulary.ids]
    if missing:
        raise CheckpointError(
            f"{source}: {PREFIX}tokens lacks {len(missing)} of the 256 byte pieces "
            f"(the first is <0x{missing[0]:02X}>), so some text would be lost"
        )


def _scores(source: str, metadata: Mapping[str, Any], count: int) -> list[float]:
    scores = [float(score) for score in numbers(source, metadata, "scores", count)]
    if not all(map(math.isfinite, scores)):
        raise CheckpointError(f"{source}: {PREFIX}scores must be finite")
    return scores
