"""``text.json``: what a core says of its tokenizer, template context and sampling defaults."""

import json
from collections.abc import Mapping
from typing import Literal

from msgspec import Struct, field

from engine.core.strict import decode_with, decoder_for, encode, parse_json
from engine.errors import CoreError

INFO_FILE = "text.json"
TOKENIZER_FILE = "tokenizer.json"
TEMPLATE_FILE = "chat_template.jinja"


class PieceRules(Struct, frozen=True):
    """How the text of vocabulary entries turns into bytes.

    kind "byte_level": each character of a piece stands for one byte (GPT-2's alphabet);
    "sentencepiece": U+2581 stands for a space. byte_fallback: pieces ``<0x00>`` to ``<0xFF>`` are
    single bytes. strip_space: one space at the very start of a text is not part of it.
    """

    kind: Literal["byte_level", "sentencepiece"]
    byte_fallback: bool = False
    strip_space: bool = False


class GenerationDefaults(Struct, frozen=True):
    """Sampling values that the checkpoint recommends; None: it says nothing."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


class TextInfo(Struct, frozen=True):
    """The content of ``text.json``.

    vocab_size: ids below it belong to the tokenizer and may be sampled. add_bos: a prompt begins
    with ``bos_id``. eos_ids: end tokens, sorted. special_tokens: names that a chat template may
    use (``bos_token``, ``eos_token`` ...) and their text. chat_template: there is such a file.
    """

    vocab_size: int
    add_bos: bool
    bos_id: int | None
    eos_ids: tuple[int, ...]
    pieces: PieceRules
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    generation: GenerationDefaults = field(default_factory=GenerationDefaults)
    chat_template: bool = False


def info_bytes(info: TextInfo) -> bytes:
    """Return the bytes of ``text.json``."""
    return json.dumps(encode(info), ensure_ascii=False, indent=1).encode() + b"\n"


def parse_info(data: bytes) -> TextInfo:
    """Read ``text.json`` strictly. Raises CoreError naming the key, what was expected and found."""
    info: TextInfo = decode_with(decoder_for(TextInfo), parse_json(data, INFO_FILE), INFO_FILE)
    _check(info)
    return info


def text_file(files: Mapping[str, bytes], name: str) -> bytes:
    """Return one of a core's text files, which come by name. Raises CoreError if it is missing."""
    if name not in files:
        raise CoreError(f"text/{name}: expected this file among the core's sections, found none")
    return files[name]


def _check(info: TextInfo) -> None:
    ids = {"bos_id": (info.bos_id,) if info.bos_id is not None else (), "eos_ids": info.eos_ids}
    if info.vocab_size <= 0:
        raise CoreError(f"{INFO_FILE}: vocab_size: expected 1 or more, found {info.vocab_size}")
    for key, values in ids.items():
        for value in values:
            if not 0 <= value < info.vocab_size:
                raise CoreError(
                    f"{INFO_FILE}: {key}: expected ids below {info.vocab_size}, found {value}"
                )
    if info.add_bos and info.bos_id is None:
        raise CoreError(f"{INFO_FILE}: bos_id: expected an id because add_bos is true, found null")
