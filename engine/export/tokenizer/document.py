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


def document_bytes(content: Mapping[str, Any]) -> bytes:
    """Return the form that loads fastest: compact, UTF-8, merges as "left right" strings."""
    return json.dumps(
        {**content, "model": _compact_model(content["model"])},
        ensure_ascii=False,
        separators=(",", ":"),
    ).encode()


def load_document(data: bytes, source: str) -> Backend:
    """Build the tokenizer. Raises CheckpointError, so that a bad one never reaches a core."""
    try:
        return parse_backend(data)
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
        _check_template(source, chat_template, special_tokens)
        files[TEMPLATE_FILE] = chat_template.encode()
    return SourceText(files, ends, vocab_size)


def _check_template(source: str, template: str, special_tokens: Mapping[str, str]) -> None:
    try:
        ChatTemplate(template, special_tokens)
    except CoreError as error:
        raise CheckpointError(f"{source}: {error}", error.hint) from error


def _compact_model(model: Mapping[str, Any]) -> Mapping[str, Any]:
    merges = model.get("merges")
    if not merges or isinstance(merges[0], str):
        return model
    if any(" " in part for pair in merges for part in pair):
        return model  # only pairs can tell such parts from each other
    return {**model, "merges": [" ".join(pair) for pair in merges]}
