"""How text is cut before byte-level BPE, by the ``tokenizer.ggml.pre`` kind of a GGUF file.

Each kind is the pre-tokenizer of the model family's own ``tokenizer.json``; the names are those of
the GGUF converter. A kind that is not here is refused: a wrong cut changes the ids of ordinary
text without any other sign.
"""

from typing import Any

from msgspec import Struct

Section = dict[str, Any]

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class Split(Struct, frozen=True):
    """A pre-tokenizer with what belongs to it.

    ignore_merges: a word that is in the vocabulary is one token, whatever the merges say.
    add_bos: whether prompts begin with BOS when the file has no ``add_bos_token``.
    """

    pre_tokenizer: Section
    normalizer: Section | None = None
    ignore_merges: bool = False
    add_bos: bool = False


def _byte_level(use_regex: bool) -> Section:
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def _sequence(*parts: Section) -> Section:
    return {"type": "Sequence", "pretokenizers": list(parts)}


def _by_pattern(pattern: str) -> Section:
    split = {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }
    return _sequence(split, _byte_level(use_regex=False))


_GPT2 = Split(_byte_level(use_regex=True))
_SINGLE_DIGITS = Split(
    _sequence({"type": "Digits", "individual_digits": True}, _byte_level(use_regex=True))
)
_LLAMA_BPE = Split(_by_pattern(_LLAMA3), ignore_merges=True, add_bos=True)
_QWEN = Split(_by_pattern(_QWEN2), normalizer={"type": "NFC"})

SPLITS: dict[str, Split] = {
    "gpt-2": _GPT2,
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
    "llama-bpe": _LLAMA_BPE,
    "llama3": _LLAMA_BPE,
    "llama-v3": _LLAMA_BPE,
    "tekken": Split(_by_pattern(_TEKKEN), ignore_merges=True),
    "qwen2": _QWEN,
    "deepseek-r1-qwen": _QWEN,
}
