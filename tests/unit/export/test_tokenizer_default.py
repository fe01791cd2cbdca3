"""The default model's tokenizer and template, compared with Transformers."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from engine.export.checkpoint.gguf_file import read_gguf
from engine.export.tokenizer import gguf_text_files
from engine.text.assets import TextAssets, load_text
from tests.support.corpus import mixed_lines

pytestmark = pytest.mark.model

LINES = 1000


@pytest.fixture(scope="module")
def assets(default_gguf: Path) -> TextAssets:
    return load_text(gguf_text_files(read_gguf(default_gguf).metadata).files)


@pytest.fixture(scope="module")
def converted(default_gguf: Path) -> PreTrainedTokenizerBase:
    """Transformers' own conversion. It cuts text as GPT-2 does, whatever the file's kind says."""
    return AutoTokenizer.from_pretrained(default_gguf.parent, gguf_file=default_gguf.name)


@pytest.fixture
def original(converted: PreTrainedTokenizerBase) -> Tokenizer:
    """The conversion with the pre-tokenizer of SmolLM2's published tokenizer.json."""
    tokenizer = Tokenizer.from_str(converted.backend_tokenizer.to_str())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    return tokenizer


@pytest.mark.parametrize("controls", [False, True])
def test_ids_equal_the_models_own_tokenizer(
    assets: TextAssets, original: Tokenizer, controls: bool
) -> None:
    for line in mixed_lines(LINES, controls=controls):
        assert assets.tokenizer.encode(line) == original.encode(line).ids, ascii(line)


def test_ids_equal_with_control_parsing_off(assets: TextAssets, original: Tokenizer) -> None:
    original.encode_special_tokens = True
    for line in mixed_lines(LINES, controls=True, seed=2):
        ids = assets.tokenizer.encode(line, parse_special=False)
        assert ids == original.encode(line).ids, ascii(line)
        assert not assets.tokenizer.special_ids & set(ids)


def test_text_without_digits_equals_the_plain_conversion(
    assets: TextAssets, converted: PreTrainedTokenizerBase
) -> None:
    lines = ["".join(c for c in line if not c.isnumeric()) for line in mixed_lines(LINES)]
    for line in lines:
        assert assets.tokenizer.encode(line) == converted.encode(line), ascii(line)


def test_corpus_round_trips(assets: TextAssets) -> None:
    for line in mixed_lines(LINES, controls=True, seed=4):
        for parse in (True, False):
            ids = assets.tokenizer.encode(line, parse_special=parse)
            assert assets.tokenizer.decode(ids, skip_special=False) == line
            detokenizer = assets.tokenizer.detokenizer(skip_special=False)
            streamed = "".join(detokenizer.push((token,)) for token in ids)
            assert streamed + detokenizer.flush() == line


def test_spans_of_control_tokens(assets: TextAssets) -> None:
    text = "<|im_start|>Hello<|im_end|>"
    assert assets.tokenizer.encode(text) == [1, 19556, 2]
    assert len(assets.tokenizer.encode(text, parse_special=False)) > 3
    assert assets.info.eos_ids == (2,)
    assert assets.info.vocab_size == 49152


def test_rendered_chats_equal_transformers(
    assets: TextAssets, converted: PreTrainedTokenizerBase
) -> None:
    template = assets.chat_template
    assert template is not None
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Count: 1 2 3\n"},
        {"role": "assistant", "content": "1, 2, 3 <ok>"},
        {"role": "user", "content": "\u4e2d\u6587 \U0001f600?"},
    ]
    for messages in (turns, turns[1:2], turns[:3], turns[1:]):
        for prompt in (False, True):
            expected = converted.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=prompt
            )
            assert template.render(messages, add_generation_prompt=prompt) == expected
