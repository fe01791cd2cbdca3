"""Hugging Face tokenizers: configuration files merged, end tokens united, unsafe paths refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, processors
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from engine.errors import CheckpointError
from engine.export.tokenizer import hf_text_files
from engine.text.assets import TextAssets, load_text
from tests.support.corpus import mixed_lines
from tests.support.tokenizers import hf_tokenizer, save_hf

CONFIG: dict[str, Any] = {"bos_token": "<s>", "eos_token": "</s>"}


def loaded(folder: Path) -> TextAssets:
    return load_text(hf_text_files(folder).files)


def test_ids_equal_transformers(tmp_path: Path) -> None:
    backend = hf_tokenizer()
    backend.add_tokens(
        [
            AddedToken("<|x|>", normalized=False, rstrip=True),
            AddedToken("<|l|>", normalized=False, lstrip=True),
            AddedToken("<|b|>", normalized=False, lstrip=True, rstrip=True),
            AddedToken("word", normalized=False, single_word=True),
        ]
    )
    save_hf(tmp_path, backend, tokenizer_config__json=CONFIG)
    tokenizer = loaded(tmp_path).tokenizer
    expected = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"), **CONFIG)
    lines = [" a <|l|> b <|x|> c <|b|>  d<|l|><|x|> word words", "<|b|>\n\n<|l|>", "  <|x|>  "]
    for line in [*lines, *mixed_lines(200, controls=True, seed=6)]:
        ids = tokenizer.encode(line)
        assert ids == expected.encode(line, add_special_tokens=False)
        assert tokenizer.decode(ids, skip_special=False) == expected.decode(ids)


def test_merges_are_stored_in_the_form_that_loads_fastest(tmp_path: Path) -> None:
    files = hf_text_files(save_hf(tmp_path, hf_tokenizer())).files
    merges = json.loads(files["tokenizer.json"])["model"]["merges"]
    assert all(isinstance(merge, str) for merge in merges)


def test_end_tokens_are_the_union(tmp_path: Path) -> None:
    config = {**CONFIG, "eos_token": {"content": "</s>", "lstrip": False}}
    save_hf(
        tmp_path,
        hf_tokenizer(),
        tokenizer_config__json=config,
        generation_config__json={"eos_token_id": [7, 9], "temperature": 0.6, "top_k": 20},
        config__json={"eos_token_id": 8},
    )
    files = hf_text_files(tmp_path)
    assert files.eos_ids == (1, 7, 8, 9)
    info = loaded(tmp_path).info
    assert info.eos_ids == (1, 7, 8, 9)
    assert (info.generation.temperature, info.generation.top_k) == (0.6, 20)
    assert info.generation.top_p is None


@pytest.mark.parametrize("explicit", [None, True, False])
def test_begin_token_from_the_post_processor_or_the_configuration(
    tmp_path: Path, explicit: bool | None
) -> None:
    backend = hf_tokenizer()
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    config = CONFIG if explicit is None else {**CONFIG, "add_bos_token": explicit}
    save_hf(tmp_path, backend, tokenizer_config__json=config)
    tokenizer = loaded(tmp_path).tokenizer
    assert tokenizer.info.add_bos is (explicit is not False)
    assert tokenizer.encode("<s>hi").count(0) == 1


def test_a_tokenizer_that_ends_prompts_is_refused(tmp_path: Path) -> None:
    backend = hf_tokenizer()
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    save_hf(tmp_path, backend, tokenizer_config__json=CONFIG)
    with pytest.raises(CheckpointError, match="ends prompts"):
        hf_text_files(tmp_path)


def test_tokens_that_only_the_configuration_marks(tmp_path: Path) -> None:
    """A named token of the vocabulary, and entries of added_tokens_decoder, are matched whole."""
    backend = hf_tokenizer(special=("<s>", "</s>", "<|im_end|>"))
    content = json.loads(backend.to_str())
    content["added_tokens"] = []
    next_id = len(content["model"]["vocab"])
    decoder = {str(next_id): {"content": "<think>", "special": False, "normalized": False}}
    save_hf(
        tmp_path,
        Backend.from_str(json.dumps(content)),
        tokenizer_config__json={"added_tokens_decoder": decoder, "eos_token": "<|im_end|>"},
        special_tokens_map__json={"bos_token": "<s>", "eos_token": "</s>"},
    )
    tokenizer = loaded(tmp_path).tokenizer
    assert tokenizer.encode("<think><|im_end|>") == [next_id, 2]
    assert tokenizer.info.eos_ids == (2,)  # tokenizer_config wins over special_tokens_map
    assert tokenizer.info.special_tokens == {"bos_token": "<s>", "eos_token": "<|im_end|>"}
    assert tokenizer.decode([next_id, 2]) == "<think>"
    assert tokenizer.vocab_size == next_id + 1


def test_a_gap_in_the_added_ids_is_refused(tmp_path: Path) -> None:
    backend = hf_tokenizer()
    wrong = {str(backend.get_vocab_size() + 5): {"content": "<far>"}}
    save_hf(tmp_path, backend, tokenizer_config__json={"added_tokens_decoder": wrong})
    with pytest.raises(CheckpointError, match="<far>"):
        hf_text_files(tmp_path)


@pytest.mark.parametrize("as_list", [False, True])
def test_the_template_file_wins_over_the_configuration(tmp_path: Path, as_list: bool) -> None:
    templates = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    config = {**CONFIG, "chat_template": templates if as_list else "D"}
    save_hf(tmp_path, hf_tokenizer(), tokenizer_config__json=config)
    assert hf_text_files(tmp_path).files["chat_template.jinja"] == b"D"
    (tmp_path / "chat_template.jinja").write_text("F")
    assert hf_text_files(tmp_path).files["chat_template.jinja"] == b"F"


def test_a_missing_tokenizer_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is missing"):
        hf_text_files(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
        *("chat_template.jinja", "config.json", "generation_config.json"),
    ],
)
def test_a_link_out_of_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    """H58: files of the text."""
    model = save_hf(tmp_path / "model", hf_tokenizer(), tokenizer_config__json=CONFIG)
    outside = tmp_path / "outside"
    outside.write_text("{}")
    (model / name).unlink(missing_ok=True)
    (model / name).symlink_to(outside)
    with pytest.raises(CheckpointError, match="leads out of the checkpoint"):
        hf_text_files(model)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("generation_config__json", {"temperature": "hot"}, "temperature"),
        ("generation_config__json", {"top_p": 0}, "top_p"),
        ("config__json", {"eos_token_id": "2"}, "eos_token_id"),
        ("config__json", {"eos_token_id": 4096}, "4096"),
        ("generation_config__json", {"eos_token_id": "2"}, "eos_token_id"),
        ("generation_config__json", {"eos_token_id": 10**6}, "outside the vocabulary"),
        ("tokenizer_config__json", {"eos_token": "<absent>"}, "<absent>"),
        ("tokenizer_config__json", {"chat_template": 5}, "chat_template"),
        ("tokenizer_config__json", {"chat_template": [{"name": "x"}]}, "default"),
        ("tokenizer_config__json", {"chat_template": "{% if %}"}, "chat_template.jinja, line 1"),
        ("tokenizer_config__json", {"added_tokens_decoder": {"x": "y"}}, "malformed entry 'x'"),
        ("tokenizer_config__json", {"add_bos_token": True}, "no bos_token"),
        ("tokenizer_config__json", {"eos_token": "\ud800"}, "surrogate"),
        ("tokenizer_config__json", {"chat_template": "\ud800"}, "surrogate"),
        ("tokenizer_config__json", {"chat_template": [{"name": {}}]}, "default"),
        ("tokenizer_config__json", "not json", "tokenizer_config.json"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, name: str, value: Any, message: str) -> None:
    save_hf(tmp_path, hf_tokenizer(), **{name: value})
    with pytest.raises(CheckpointError, match=message):
        hf_text_files(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        '{"model": 1}',
        '{"model": {}, "added_tokens": [1]}',
        '{"model": {"type": "BPE", "merges": [1]}, "decoder": {"type": "ByteLevel"}}',
        '{"model": {"type": "BPE", "x": "\\ud800"}, "decoder": {"type": "ByteLevel"}}',
    ],
)
def test_a_damaged_tokenizer_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        hf_text_files(tmp_path)


@pytest.mark.parametrize("decoder", [None, decoders.WordPiece(), decoders.CTC()])
def test_decoders_that_cannot_be_followed_are_refused(tmp_path: Path, decoder: Any) -> None:
    content = json.loads(hf_tokenizer().to_str())
    content["decoder"] = None if decoder is None else {"type": type(decoder).__name__}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"the decoder \("):
        hf_text_files(tmp_path)
