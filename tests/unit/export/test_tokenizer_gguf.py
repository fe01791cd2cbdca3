"""GGUF tokenizers: the same ids as Transformers' conversion of the same file, or a refusal."""

from pathlib import Path
from typing import Any

import pytest
from tokenizers import normalizers
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from engine.errors import CheckpointError
from engine.export.tokenizer import gguf_text_files
from engine.text.tokenizer import Tokenizer
from tests.support.corpus import mixed_lines
from tests.support.tokenizers import (
    UNUSED,
    byte_level_metadata,
    save_gguf_metadata,
    sentencepiece_metadata,
)

GGML = "tokenizer.ggml."


def converted(metadata: dict[str, Any]) -> Tokenizer:
    return Tokenizer.load(gguf_text_files(metadata).files)


def oracle(metadata: dict[str, Any], folder: Path) -> PreTrainedTokenizerBase:
    file = save_gguf_metadata(folder / "model.gguf", metadata)
    return AutoTokenizer.from_pretrained(folder, gguf_file=file.name)


def assert_same_ids(tokenizer: Tokenizer, expected: PreTrainedTokenizerBase) -> None:
    for line in mixed_lines(300, controls=True, seed=5):
        ids = tokenizer.encode(line, add_special=False)
        assert ids == expected.encode(line, add_special_tokens=False), ascii(line)
    assert tokenizer.encode("hi") == expected.encode("hi")


@pytest.mark.parametrize("add_bos", [False, True])
@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "tekken", "qwen2"])
def test_byte_level_ids_equal_transformers(pre: str, add_bos: bool, tmp_path: Path) -> None:
    # Transformers adds <|endoftext|> to a file that lacks it, with an id beyond the vocabulary.
    controls = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
    metadata = byte_level_metadata(pre, controls=controls, user=("<|x|>",))
    metadata[GGML + "add_bos_token"] = add_bos
    expected = oracle(metadata, tmp_path)
    # The families' own tokenizer.json has these; Transformers' conversion leaves them out.
    if pre == "qwen2":
        expected.backend_tokenizer.normalizer = normalizers.NFC()
    expected.backend_tokenizer.model.ignore_merges = pre in ("llama-bpe", "tekken")
    assert_same_ids(converted(metadata), expected)


@pytest.mark.parametrize("prefix", [None, True])
def test_sentencepiece_ids_equal_transformers(prefix: bool | None, tmp_path: Path) -> None:
    metadata = sentencepiece_metadata(prefix=prefix)
    assert_same_ids(converted(metadata), oracle(metadata, tmp_path))


def test_sentencepiece_without_prefix_space() -> None:
    tokenizer = converted(sentencepiece_metadata(prefix=False))
    ids = tokenizer.encode("the model", add_special=False)
    assert tokenizer.token_bytes(ids[0])[:1] != b" "
    assert tokenizer.decode(ids) == "the model"
    assert tokenizer.decode(tokenizer.encode(" the")) == " the"


def test_single_digits_for_smollm() -> None:
    tokenizer = converted(byte_level_metadata("smollm"))
    texts = [tokenizer.token_text(i) for i in tokenizer.encode("\t\t2026 x")]
    assert [text for text in texts if text.isdigit()] == ["2", "0", "2", "6"]


def test_begin_token_defaults() -> None:
    for metadata, expected in (
        (byte_level_metadata("gpt-2"), False),
        (byte_level_metadata("llama-bpe"), True),
        (sentencepiece_metadata(), True),
    ):
        assert converted(metadata).info.add_bos is expected


def test_end_tokens_are_the_union() -> None:
    metadata = byte_level_metadata(controls=("<|begin|>", "<|end|>", "<|eot|>", "<|eom|>"))
    metadata |= {GGML + "eot_token_id": 2, GGML + "eom_token_id": 3}
    files = gguf_text_files(metadata)
    assert files.eos_ids == (1, 2, 3)
    assert converted(metadata).info.eos_ids == (1, 2, 3)


def test_an_end_token_typed_as_normal_is_special_all_the_same() -> None:
    metadata = byte_level_metadata()
    metadata[GGML + "token_type"][1] = 1
    tokenizer = converted(metadata)
    assert tokenizer.encode("a<|end|>")[-1] == 1
    assert tokenizer.decode(tokenizer.encode("a<|end|>")) == "a"


def test_padding_at_the_end_is_never_sampled() -> None:
    metadata = byte_level_metadata()
    known = len(metadata[GGML + "tokens"])
    metadata[GGML + "tokens"] += ["[PAD0]", "[PAD1]"]
    metadata[GGML + "token_type"] += [UNUSED, UNUSED]
    assert gguf_text_files(metadata).vocab_size == known
    tokenizer = converted(metadata)
    assert tokenizer.vocab_size == known
    assert known not in tokenizer.encode("[PAD0]")


def test_the_template_is_checked_and_kept() -> None:
    metadata = byte_level_metadata()
    assert "chat_template.jinja" not in gguf_text_files(metadata).files
    template = "{{ bos_token }}{{ messages[0].content }}"
    files = gguf_text_files({**metadata, "tokenizer.chat_template": template}).files
    assert files["chat_template.jinja"].decode() == template
    with pytest.raises(CheckpointError, match=r"m\.gguf: chat_template\.jinja, line 1"):
        gguf_text_files({**metadata, "tokenizer.chat_template": "{% if %}"}, "m.gguf")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("pre", "nonesuch", "pre-tokenizer kind 'nonesuch'"),
        ("pre", None, "pre-tokenizer kind None"),
        ("pre", "default", "pre-tokenizer kind 'default'"),
        ("model", "t5", "tokenizer model 't5'"),
        ("model", None, "tokenizer model None"),
        ("tokens", None, "tokens is missing"),
        ("tokens", ["a", 1], "array of strings"),
        ("tokens", 5, "array of strings"),
        ("token_type", 5, "array of numbers"),
        ("token_type", ["a"], "array of numbers"),
        ("token_type", None, "token_type is missing"),
        ("token_type", [1, 1], "token_type has 2 entries"),
        ("merges", None, "merges is missing"),
        ("merges", ["a"], "malformed entry 'a'"),
        ("merges", ["zzz yyy"], "cannot be built"),
        ("eos_token_id", 10**6, "eos_token_id must be a token id"),
        ("eos_token_id", -1, "eos_token_id must be a token id"),
        ("eos_token_id", True, "eos_token_id must be a token id"),
        ("add_bos_token", 1, "add_bos_token must be true or false"),
        ("add_eos_token", True, "add_eos_token is not supported"),
        ("add_space_prefix", True, "add_space_prefix is not supported"),
    ],
)
def test_what_is_wrong_is_named(key: str, value: object, message: str) -> None:
    metadata = {**byte_level_metadata(size=300), GGML + key: value}
    if value is None:
        del metadata[GGML + key]
    with pytest.raises(CheckpointError, match=message) as caught:
        gguf_text_files(metadata, "model.gguf")
    assert str(caught.value).startswith("model.gguf: ")


def test_duplicate_and_unknown_entries_are_refused() -> None:
    metadata = byte_level_metadata(size=300)
    metadata[GGML + "tokens"][5] = metadata[GGML + "tokens"][6]
    with pytest.raises(CheckpointError, match="twice"):
        gguf_text_files(metadata)
    metadata = byte_level_metadata(size=300)
    metadata[GGML + "token_type"][5] = 9
    with pytest.raises(CheckpointError, match="unknown type 9"):
        gguf_text_files(metadata)


def test_a_begin_token_that_is_wanted_must_be_there() -> None:
    metadata = byte_level_metadata(size=300)
    metadata[GGML + "add_bos_token"] = True
    del metadata[GGML + "bos_token_id"]
    with pytest.raises(CheckpointError, match="bos_token_id is missing"):
        gguf_text_files(metadata)


def test_sentencepiece_needs_all_bytes_and_scores() -> None:
    metadata = sentencepiece_metadata()
    metadata[GGML + "tokens"][3] = "gone"
    with pytest.raises(CheckpointError, match="<0x00>"):
        gguf_text_files(metadata)
    metadata = sentencepiece_metadata()
    metadata[GGML + "scores"] = [0.0]
    with pytest.raises(CheckpointError, match="scores has 1 entries"):
        gguf_text_files(metadata)
    metadata[GGML + "tokens"][-1] = "x" * 2000
    with pytest.raises(CheckpointError, match="piece of 2000 characters"):
        gguf_text_files(metadata)
    metadata = sentencepiece_metadata()
    metadata[GGML + "scores"] = [float("nan")] * len(metadata[GGML + "tokens"])
    with pytest.raises(CheckpointError, match="finite"):
        gguf_text_files(metadata)
