"""Which ``decoder`` sections of a ``tokenizer.json`` Flare can follow, as piece rules."""

from collections.abc import Mapping, Sequence
from typing import Any

from engine.errors import CheckpointError
from engine.text.info import PieceRules
from engine.text.pieces import SPACE_MARK


def piece_rules(source: str, decoder: object) -> PieceRules:
    """Return the rules that a decoder section describes. Raises CheckpointError naming it."""
    steps = _steps(decoder)
    kinds = [step.get("type") for step in steps]
    if kinds == ["ByteLevel"]:
        return PieceRules("byte_level")
    if kinds == ["Metaspace"] and steps[0].get("replacement", SPACE_MARK) == SPACE_MARK:
        return PieceRules("sentencepiece", strip_space=_prepends(steps[0]))
    if kinds and all(map(_is_sentencepiece_step, steps)) and "Replace" in kinds:
        return PieceRules("sentencepiece", "ByteFallback" in kinds, "Strip" in kinds)
    names = ", ".join(map(str, kinds)) or "none"
    raise CheckpointError(
        f"{source}: the decoder ({names}) is not supported",
        "Supported: byte-level BPE and SentencePiece tokenizers.",
    )


def _steps(decoder: object) -> Sequence[Mapping[str, Any]]:
    if not isinstance(decoder, Mapping):
        return []
    steps = decoder.get("decoders") if decoder.get("type") == "Sequence" else [decoder]
    is_list = isinstance(steps, list) and all(isinstance(step, Mapping) for step in steps)
    return steps if is_list else []  # type: ignore[return-value]


def _is_sentencepiece_step(step: Mapping[str, Any]) -> bool:
    match step.get("type"):
        case "ByteFallback" | "Fuse":
            return True
        case "Replace":
            return _is(step, pattern={"String": SPACE_MARK}, content=" ")
        case "Strip":
            return _is(step, content=" ", start=1, stop=0)
    return False


def _is(step: Mapping[str, Any], **wanted: object) -> bool:
    return all(step.get(key) == value for key, value in wanted.items())


def _prepends(metaspace: Mapping[str, Any]) -> bool:
    """Whether a Metaspace decoder drops the first space (``prepend_scheme``; older: a flag)."""
    scheme = metaspace.get("prepend_scheme")
    if scheme is None:
        return metaspace.get("add_prefix_space", True) is True
    return bool(scheme != "never")
