"""The tokenizer of a Hugging Face model directory.

``tokenizer.json`` gives pieces, merges and cuts; ``tokenizer_config.json`` (or the older
``special_tokens_map.json``) names the begin and end tokens and may add tokens;
``generation_config.json`` and ``config.json`` name end tokens and sampling defaults.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from engine.errors import CheckpointError
from engine.export.checkpoint.base import SourceText
from engine.export.checkpoint.fields import Fields
from engine.export.checkpoint.hf_config import read_json
from engine.export.checkpoint.paths import inside
from engine.export.checkpoint.safetensors_file import parse_object
from engine.export.tokenizer.begin import adds_bos
from engine.export.tokenizer.decoders import piece_rules
from engine.export.tokenizer.document import (
    added_token,
    build_document,
    text_files,
    utf8,
)
from engine.export.tokenizer.generation import generation_defaults
from engine.text.info import TEMPLATE_FILE, TOKENIZER_FILE

MAX_TOKENIZER_BYTES = 256 << 20
MAX_TEMPLATE_BYTES = 4 << 20
CONFIG = "tokenizer_config.json"
SPECIAL_MAP = "special_tokens_map.json"
_NAMED = (
    "bos_token",
    "eos_token",
    "unk_token",
    "pad_token",
    "sep_token",
    "cls_token",
    "mask_token",
)
_EXTRA = ("additional_special_tokens", "extra_special_tokens")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def hf_text_files(folder: Path) -> SourceText:
    """Convert the tokenizer, chat template and sampling defaults of a model directory.

    End tokens: the union of ``generation_config.json``, ``config.json`` and the tokenizer's own.
    Every file must lie inside the folder. Raises CheckpointError naming the file and what is
    missing or not supported.
    """
    content = _read_tokenizer(folder)
    source = str(folder / TOKENIZER_FILE)
    config = {**_optional(folder, SPECIAL_MAP), **_optional(folder, CONFIG)}
    named = {name: text for name in _NAMED if (text := _token_text(config.get(name))) is not None}
    rules = piece_rules(source, content.get("decoder"))
    _, original = build_document(content, source)
    content = _complete(content, config, named, original)
    data, backend = build_document(content, source)
    _check_ids(source, content["added_tokens"], backend)
    bos_id = _named_id(source, named, "bos_token", backend)
    eos_id = _named_id(source, named, "eos_token", backend)
    return text_files(
        str(folder),
        data,
        vocab_size=max(backend.get_vocab(with_added_tokens=True).values()) + 1,
        add_bos=adds_bos(source, config, original, bos_id),
        bos_id=bos_id,
        eos_ids=[*_configured_ends(folder), *([] if eos_id is None else [eos_id])],
        rules=rules,
        special_tokens=named,
        generation=generation_defaults(folder, _optional(folder, "generation_config.json")),
        chat_template=_chat_template(folder, config),
    )


def _read_tokenizer(folder: Path) -> dict[str, Any]:
    if not (folder / TOKENIZER_FILE).exists() and not (folder / TOKENIZER_FILE).is_symlink():
        raise CheckpointError(
            f"{folder}: {TOKENIZER_FILE} is missing",
            "Convert an older tokenizer with AutoTokenizer.from_pretrained(DIR)"
            ".save_pretrained(DIR).",
        )
    content = parse_object(
        str(folder / TOKENIZER_FILE), _bounded(inside(folder, TOKENIZER_FILE), MAX_TOKENIZER_BYTES)
    )
    if not isinstance(content.get("model"), dict):
        raise CheckpointError(f"{folder / TOKENIZER_FILE}: model must be an object")
    added = content.get("added_tokens") or []
    if not isinstance(added, list) or not all(_is_added(entry) for entry in added):
        raise CheckpointError(f"{folder / TOKENIZER_FILE}: added_tokens must be a list of tokens")
    return {**content, "added_tokens": added, "truncation": None, "padding": None}


def _complete(
    content: dict[str, Any],
    config: Mapping[str, Any],
    named: Mapping[str, str],
    original: Backend,
) -> dict[str, Any]:
    """Add the tokens that only the configuration marks; drop what Flare does itself."""
    added = {entry["content"]: entry for entry in content["added_tokens"]}
    for token_id, entry in _configured_added(config):
        added.setdefault(entry["content"], {"id": token_id, **entry})
    for text in (*named.values(), *_extra_special(config)):
        known = original.token_to_id(text)
        if known is not None:
            entry = added.get(text) or added_token(known, text, True)
            added[text] = {**entry, "special": True}
    in_order = sorted(added.values(), key=lambda entry: entry["id"])
    return {**content, "added_tokens": in_order, "post_processor": None}


def _configured_added(config: Mapping[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the entries of ``added_tokens_decoder``: id -> text and flags."""
    table = config.get("added_tokens_decoder")
    for key, value in table.items() if isinstance(table, dict) else ():
        text = _token_text(value) if isinstance(value, dict) else None
        if text is None or not key.isdecimal():
            raise CheckpointError(f"{CONFIG}: added_tokens_decoder has a malformed entry {key!r}")
        entry = added_token(int(key), text, False)
        flags = {flag: value[flag] for flag in _FLAGS if type(value.get(flag)) is bool}
        yield int(key), entry | flags


def _extra_special(config: Mapping[str, Any]) -> Iterator[str]:
    for key in _EXTRA:
        values = config.get(key)
        items = list(values.values()) if isinstance(values, dict) else values
        for item in items if isinstance(items, list) else ():
            text = _token_text(item)
            if text is not None:
                yield text


def _token_text(value: object) -> str | None:
    """A token is a string or an object with its text as ``content``."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) and utf8(CONFIG, text) else None


def _is_added(entry: object) -> bool:
    return (
        isinstance(entry, dict)
        and type(entry.get("id")) is int
        and isinstance(entry.get("content"), str)
    )


def _check_ids(source: str, added: list[dict[str, Any]], backend: Backend) -> None:
    for entry in added:
        found = backend.token_to_id(entry["content"])
        if found != entry["id"]:
            raise CheckpointError(
                f"{source}: added token {entry['content']!r} should have id {entry['id']}, "
                f"but the vocabulary gives it {found}"
            )


def _named_id(source: str, named: Mapping[str, str], name: str, backend: Backend) -> int | None:
    text = named.get(name)
    if text is None:
        return None
    token_id = backend.token_to_id(text)
    if token_id is None:
        raise CheckpointError(f"{source}: {name} {text!r} is not in the vocabulary")
    return token_id


def _configured_ends(folder: Path) -> Iterator[int]:
    for name in ("generation_config.json", "config.json"):
        yield from Fields(str(folder / name), _optional(folder, name)).ids("eos_token_id")


def _chat_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """``chat_template.jinja`` wins over the configuration; of several, the one named default."""
    file = folder / TEMPLATE_FILE
    if file.exists() or file.is_symlink():
        data = _bounded(inside(folder, TEMPLATE_FILE), MAX_TEMPLATE_BYTES)
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{file} is not UTF-8") from error
    value = config.get("chat_template")
    if isinstance(value, list):
        named = (v for v in value if isinstance(v, dict) and v.get("name") == "default")
        value = next(named, {}).get("template")
        if value is None:
            raise CheckpointError(f"{folder / CONFIG}: no chat_template is named default")
    if value is not None and not isinstance(value, str):
        raise CheckpointError(f"{folder / CONFIG}: chat_template must be a string")
    return value or None


def _optional(folder: Path, name: str) -> dict[str, Any]:
    """A JSON object of the folder, empty when there is no such file."""
    present = (folder / name).exists() or (folder / name).is_symlink()
    return read_json(folder, name) if present else {}


def _bounded(path: Path, limit: int) -> bytes:
    if path.stat().st_size > limit:
        raise CheckpointError(f"{path} is larger than {limit} bytes")
    return path.read_bytes()
