"""Small tokenizers made on the spot: GGUF metadata, GGUF files, model directories."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.support.corpus import mixed_lines

SPACE_MARK = "\u2581"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


def byte_level_metadata(
    pre: str = "gpt-2",
    *,
    controls: Sequence[str] = ("<|begin|>", "<|end|>"),
    user: Sequence[str] = (),
    size: int = 700,
) -> dict[str, Any]:
    """GGUF metadata of a byte-level BPE tokenizer trained on a mixed corpus.

    Control tokens come first (begin 0, end 1), user-defined ones last.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(controls),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(mixed_lines(300, seed=7), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = [*sorted(model["vocab"], key=model["vocab"].get), *user]
    types = [CONTROL if token in controls else NORMAL for token in tokens]
    types[len(tokens) - len(user) :] = [USER_DEFINED] * len(user)
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [" ".join(pair) for pair in model["merges"]],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
    }


def sentencepiece_metadata(pieces: int = 600, *, prefix: bool | None = None) -> dict[str, Any]:
    """GGUF metadata of a SentencePiece BPE vocabulary: <unk>, <s>, </s>, bytes, then pieces."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=True)
    trainer = trainers.BpeTrainer(vocab_size=pieces, limit_alphabet=200, show_progress=False)
    tokenizer.train_from_iterator(mixed_lines(300, seed=8), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    merged = ["".join(pair) for pair in model["merges"]]
    letters = sorted(set(model["vocab"]) - set(merged))
    learned = [*dict.fromkeys(merged), *letters]
    byte_pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    metadata: dict[str, Any] = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", *byte_pieces, *learned],
        "tokenizer.ggml.token_type": [UNKNOWN, CONTROL, CONTROL]
        + [BYTE] * 256
        + [NORMAL] * len(learned),
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(rank) for rank in range(len(learned))],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    if prefix is not None:
        metadata["tokenizer.ggml.add_space_prefix"] = prefix
    return metadata


def save_gguf_metadata(path: Path, metadata: Mapping[str, Any]) -> Path:
    """Write a GGUF file without tensors, readable by other tools."""
    writer = gguf.GGUFWriter(path, "llama")
    for key in ("block_count", "context_length", "embedding_length", "feed_forward_length"):
        writer.add_uint32(f"llama.{key}", 32)
    writer.add_uint32("llama.attention.head_count", 1)
    for key, value in metadata.items():
        if key == "general.architecture":
            continue
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, list(value))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def hf_tokenizer(special: Sequence[str] = ("<s>", "</s>")) -> Tokenizer:
    """A small byte-level tokenizer as the ``tokenizers`` library would save it."""
    metadata = byte_level_metadata(controls=special)
    vocab = {token: index for index, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in special])
    return tokenizer


def save_hf(folder: Path, tokenizer: Tokenizer, **files: Mapping[str, Any] | str) -> Path:
    """Write a model directory: ``name__ext`` keywords are further files (JSON or text)."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    for key, value in files.items():
        name = key.replace("__", ".")
        text = value if isinstance(value, str) else json.dumps(value)
        (folder / name).write_text(text, encoding="utf-8")
    return folder
