"""``tokenizer.json`` documents (format of the ``tokenizers`` library) and a core's text files."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer as Backend

from engine.errors import CheckpointError, CoreError
from engine.export.checkpoint.base import SourceText
from engine.text.chat import ChatTemplate
from engine.text.info import (
    INFO_FILE,
    TEMPLATE_FILE,
    TOKENIZER_FILE,
    GenerationDefaults,
    PieceRules,
    TextInfo,
    info_bytes,
)
from engine.text.tokenizer import parse_backend

BYTE_LEVEL_DECODER = {
    "type": "ByteLevel",
    "add_prefix_space": True,
    "trim_offsets": True,
    "use_regex": True,
}


def added_token(token_id: int, content: str, special: bool) -> dict[str, Any]:
    """Return an entry of ``added_tokens`` that matches the raw text exactly."""
    return {
        "id": token_id,
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": special,
    }


def bpe_model(
    vocab: Mapping[str, int],
    merges: Sequence[str] | Sequence[tuple[str, str]],
    *,
    ignore_merges: bool = False,
    byte_fallback: bool = False,
    fuse_unk: bool = False,
) -> dict[str, Any]:
    """Return a BPE model section; merges are "left right" or pairs, best first."""
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": fuse_unk,
        "byte_fallback": byte_fallback,
        "ignore_merges": ignore_merges,
        "vocab": vocab,
        "merges": merges,
    }


def document(
    model: Mapping[str, Any],
    added: Sequence[Mapping[str, Any]],
    *,
    normalizer: Mapping[str, Any] | None,
    pre_tokenizer: Mapping[str, Any] | None,
    decoder: Mapping[str, Any],
) -> dict[str, Any]:
    """Return a whole document. Begin tokens are Flare's affair: there is no post-processor."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": list(added),
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": decoder,
        "model": model,
    }


def build_document(content: Mapping[str, Any], source: str) -> tuple[bytes, Backend]:
    """Return ``tokenizer.json`` in the form that loads fastest, and the tokenizer it makes.

    That form is compact, UTF-8, with merges as "left right" strings. Raises CheckpointError when
    the library does not take the content, so that a bad tokenizer never reaches a core.
    """
    compact = {**content, "model": _compact_model(content["model"])}
    text = json.dumps(compact, ensure_ascii=False, separators=(",", ":"))
    data = utf8(source, text)
    try:
        return data, parse_backend(data)
    except CoreError as error:
        raise CheckpointError(f"{source}: the tokenizer cannot be built: {error}") from error


def text_files(
    source: str,
    tokenizer_json: bytes,
    *,
    vocab_size: int,
    add_bos: bool,
    bos_id: int | None,
    eos_ids: Iterable[int],
    rules: PieceRules,
    special_tokens: Mapping[str, str],
    generation: GenerationDefaults,
    chat_template: str | None,
) -> SourceText:
    """Check everything and return the files of a core's text folder.

    End tokens beyond the vocabulary, and a template that does not compile, are CheckpointErrors.
    """
    ends = tuple(sorted(set(eos_ids)))
    for token_id in (*ends, *(() if bos_id is None else (bos_id,))):
        if not 0 <= token_id < vocab_size:
            raise CheckpointError(
                f"{source}: token id {token_id} lies outside the vocabulary of {vocab_size}"
            )
    info = TextInfo(
        vocab_size,
        add_bos,
        bos_id,
        ends,
        rules,
        special_tokens,
        generation,
        chat_template is not None,
    )
    files = {TOKENIZER_FILE: tokenizer_json, INFO_FILE: info_bytes(info)}
    if chat_template is not None:
        files[TEMPLATE_FILE] = utf8(source, chat_template)
        _check_template(source, chat_template, special_tokens)
    return SourceText(files, ends, vocab_size)


def utf8(source: str, text: str) -> bytes:
    """Encode a text that must be valid Unicode. Raises CheckpointError."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise CheckpointError(f"{source}: a text has an unpaired surrogate") from error


def _check_template(source: str, template: str, special_tokens: Mapping[str, str]) -> None:
    try:
        ChatTemplate(template, special_tokens)
    except CoreError as error:
        raise CheckpointError(f"{source}: {error}", error.hint) from error


def _compact_model(model: Mapping[str, Any]) -> Mapping[str, Any]:
    merges = model.get("merges")
    if not isinstance(merges, list) or not all(map(_is_plain_pair, merges)):
        return model  # strings already, or parts with spaces, which only pairs can tell apart
    return {**model, "merges": [" ".join(pair) for pair in merges]}


def _is_plain_pair(merge: object) -> bool:
    return isinstance(merge, list | tuple) and all(
        isinstance(p, str) and " " not in p for p in merge
    )
