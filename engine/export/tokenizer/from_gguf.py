"""The tokenizer that a GGUF file describes in its ``tokenizer.*`` metadata.

Keys and token types: the GGUF specification (ggml, docs/gguf.md).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from engine.errors import CheckpointError
from engine.export.checkpoint.base import SourceText
from engine.export.tokenizer.document import (
    BYTE_LEVEL_DECODER,
    added_token,
    bpe_model,
    build_document,
    document,
    text_files,
)
from engine.export.tokenizer.sentencepiece import sentencepiece_document, sentencepiece_rules
from engine.export.tokenizer.splits import SPLITS, Split
from engine.export.tokenizer.vocabulary import (
    PREFIX,
    TokenType,
    Vocabulary,
    flag,
    read_vocabulary,
    strings,
    token_id,
)
from engine.text.info import GenerationDefaults, PieceRules

_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_NAMED_KEYS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


def gguf_text_files(metadata: Mapping[str, Any], source: str = "GGUF") -> SourceText:
    """Convert the tokenizer and chat template of a GGUF file.

    metadata: all key-value pairs of the file; ``source`` begins every message. Token types are
    honoured: CONTROL and UNKNOWN tokens are special, USER_DEFINED ones are matched whole but are
    text, UNUSED ones at the end are never sampled. End tokens: ``eos``, ``eot`` and ``eom``.
    Raises CheckpointError for a tokenizer model or pre-tokenizer kind that is not supported.
    """
    vocabulary = read_vocabulary(source, metadata)
    _refuse_appended_end(source, metadata)
    named = {
        name: token_id(source, metadata, key, len(vocabulary.tokens))
        for name, key in _NAMED_KEYS.items()
    }
    ends = [token_id(source, metadata, key, len(vocabulary.tokens)) for key in _END_KEYS]
    end_ids = [end for end in ends if end is not None]
    added = _added_tokens(vocabulary, {named["bos_token"], *end_ids})
    content, rules, wants_bos = _convert(source, metadata, vocabulary, added)
    data, _ = build_document(content, source)
    return text_files(
        source,
        data,
        vocab_size=vocabulary.size,
        add_bos=_add_bos(source, metadata, wants_bos, named["bos_token"]),
        bos_id=named["bos_token"],
        eos_ids=end_ids,
        rules=rules,
        special_tokens={n: vocabulary.tokens[i] for n, i in named.items() if i is not None},
        generation=GenerationDefaults(),
        chat_template=_chat_template(source, metadata),
    )


def _convert(
    source: str,
    metadata: Mapping[str, Any],
    vocabulary: Vocabulary,
    added: Sequence[Mapping[str, Any]],
) -> tuple[dict[str, Any], PieceRules, bool]:
    """Return the document, how its pieces become text, and whether prompts want BOS by default."""
    model = metadata.get(PREFIX + "model")
    if model == "gpt2":
        split = _split(source, metadata)
        content = _byte_level_document(source, metadata, vocabulary, added, split)
        return content, PieceRules("byte_level"), split.add_bos
    if model == "llama":
        rules = sentencepiece_rules(source, metadata)
        return sentencepiece_document(source, metadata, vocabulary, added), rules, True
    raise CheckpointError(
        f"{source}: tokenizer model {model!r} is not supported",
        "Supported: gpt2 (byte-level BPE) and llama (SentencePiece BPE).",
    )


def _split(source: str, metadata: Mapping[str, Any]) -> Split:
    kind = metadata.get(PREFIX + "pre")
    if not isinstance(kind, str) or kind not in SPLITS:
        raise CheckpointError(
            f"{source}: pre-tokenizer kind {kind!r} ({PREFIX}pre) is not supported",
            f"Supported: {', '.join(sorted(SPLITS))}.",
        )
    if flag(source, metadata, "add_space_prefix", False):
        raise CheckpointError(
            f"{source}: {PREFIX}add_space_prefix is not supported for byte-level BPE"
        )
    return SPLITS[kind]


def _byte_level_document(
    source: str,
    metadata: Mapping[str, Any],
    vocabulary: Vocabulary,
    added: Sequence[Mapping[str, Any]],
    split: Split,
) -> dict[str, Any]:
    merges = strings(source, metadata, "merges")
    malformed = next((merge for merge in merges if merge.count(" ") != 1), None)
    if malformed is not None:
        raise CheckpointError(f"{source}: {PREFIX}merges has the malformed entry {malformed!r}")
    return document(
        bpe_model(vocabulary.ids, merges, ignore_merges=split.ignore_merges),
        added,
        normalizer=split.normalizer,
        pre_tokenizer=split.pre_tokenizer,
        decoder=BYTE_LEVEL_DECODER,
    )


def _added_tokens(vocabulary: Vocabulary, control_ids: set[int | None]) -> list[dict[str, Any]]:
    """Control tokens (also begin and end tokens typed otherwise) and user-defined ones, by id."""
    special = set(vocabulary.of_type(TokenType.CONTROL, TokenType.UNKNOWN)) | control_ids
    plain = set(vocabulary.of_type(TokenType.USER_DEFINED))
    ids = sorted(i for i in special | plain if i is not None and vocabulary.tokens[i])
    return [added_token(i, vocabulary.tokens[i], i in special) for i in ids]


def _add_bos(source: str, metadata: Mapping[str, Any], wanted: bool, bos_id: int | None) -> bool:
    if PREFIX + "add_bos_token" not in metadata:
        return wanted and bos_id is not None
    add = flag(source, metadata, "add_bos_token", False)
    if add and bos_id is None:
        raise CheckpointError(
            f"{source}: {PREFIX}add_bos_token is true, but {PREFIX}bos_token_id is missing"
        )
    return add


def _refuse_appended_end(source: str, metadata: Mapping[str, Any]) -> None:
    if flag(source, metadata, "add_eos_token", False):
        raise CheckpointError(
            f"{source}: {PREFIX}add_eos_token is not supported",
            "An end token behind every prompt leaves nothing to generate.",
        )


def _chat_template(source: str, metadata: Mapping[str, Any]) -> str | None:
    template = metadata.get("tokenizer.chat_template")
    if template is not None and not isinstance(template, str):
        raise CheckpointError(f"{source}: tokenizer.chat_template must be a string")
    return template or None
