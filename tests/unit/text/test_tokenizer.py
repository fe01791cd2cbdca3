"""Encoding and decoding with a small tokenizer of each kind."""

import threading
from collections.abc import Iterator
from time import sleep

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.errors import CoreError, RequestError
from engine.export.tokenizer import gguf_text_files
from engine.text.assets import load_text
from engine.text.tokenizer import Tokenizer
from tests.support.corpus import mixed_lines
from tests.support.tokenizers import (
    byte_level_metadata,
    sentencepiece_metadata,
)

ANY_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\u2581"), max_size=40)


@pytest.fixture(scope="module")
def byte_level() -> Tokenizer:
    metadata = byte_level_metadata(user=("<think>", "\t\t\t"))
    return Tokenizer.load(gguf_text_files(metadata).files)


@pytest.fixture(scope="module")
def sentencepiece() -> Tokenizer:
    return Tokenizer.load(gguf_text_files(sentencepiece_metadata()).files)


@pytest.fixture(params=["byte_level", "sentencepiece"])
def tokenizer(request: pytest.FixtureRequest) -> Iterator[Tokenizer]:
    yield request.getfixturevalue(request.param)


def kept(tokenizer: Tokenizer, text: str) -> str:
    """A SentencePiece text's own first space takes the place of the dummy one."""
    return text.removeprefix(" ") if tokenizer.info.pieces.strip_space else text


def test_corpus_round_trips(tokenizer: Tokenizer) -> None:
    for line in mixed_lines(200, seed=3):
        assert tokenizer.decode(tokenizer.encode(line)) == kept(tokenizer, line)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=ANY_TEXT, parse=st.booleans())
def test_any_text_round_trips(tokenizer: Tokenizer, text: str, parse: bool) -> None:
    ids = tokenizer.encode(text, parse_special=parse)
    assert tokenizer.decode(ids) == kept(tokenizer, text)


def test_control_tokens_parse_or_stay_text(byte_level: Tokenizer) -> None:
    text = "<|begin|>hi<|end|>"
    on, off = (byte_level.encode(text, parse_special=parse) for parse in (True, False))
    assert (on[0], on[-1]) == (0, 1)
    assert not byte_level.special_ids & set(off)
    assert byte_level.decode(off) == byte_level.decode(on, skip_special=False) == text
    assert byte_level.decode(on) == "hi"


def test_user_defined_tokens_are_whole_unless_parsing_is_off(byte_level: Tokenizer) -> None:
    think = byte_level.encode("<think>")
    assert len(think) == 1
    assert byte_level.decode(think) == "<think>"  # text, not special
    assert len(byte_level.encode("<think>", parse_special=False)) > 1


def test_white_space_tokens_are_text_in_both_modes(byte_level: Tokenizer) -> None:
    assert len(byte_level.encode("\t\t\t")) == 1
    assert byte_level.encode("\t\t\t", parse_special=False) == byte_level.encode("\t\t\t")


def test_sentencepiece_control_text_never_merges_to_its_token(sentencepiece: Tokenizer) -> None:
    off = sentencepiece.encode("a</s>b", parse_special=False, add_special=False)
    assert 2 not in off
    assert sentencepiece.decode(off) == "a</s>b"
    assert 2 in sentencepiece.encode("a</s>b")


def test_exactly_one_begin_token(byte_level: Tokenizer) -> None:
    metadata = byte_level_metadata(user=("<think>", "\t\t\t"))
    files = gguf_text_files({**metadata, "tokenizer.ggml.add_bos_token": True})
    tokenizer = Tokenizer.load(files.files)
    plain = byte_level.encode("hi")
    assert tokenizer.encode("hi") == [0, *plain]
    assert tokenizer.encode("<|begin|>hi") == [0, *plain]  # the template wrote it
    assert tokenizer.encode("hi", add_special=False) == plain
    assert tokenizer.encode("") == [0]
    literal = tokenizer.encode("<|begin|>hi", parse_special=False)
    assert literal.count(0) == 1
    assert literal[0] == 0
    assert byte_level.encode("") == []


def test_unpaired_surrogates_are_a_request_error(tokenizer: Tokenizer) -> None:
    for parse in (True, False):
        with pytest.raises(RequestError, match="surrogate"):
            tokenizer.encode("x \ud83d y", parse_special=parse)


def test_ids_outside_the_vocabulary_decode_to_nothing(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("hello")
    beyond = [tokenizer.vocab_size, 10**6, 1 << 40, -1]
    assert tokenizer.decode([*ids, *beyond]) == "hello"
    assert [tokenizer.token_bytes(i) for i in beyond] == [b""] * 4
    assert [tokenizer.token_text(i) for i in beyond] == [""] * 4


def test_token_bytes_join_to_the_text(tokenizer: Tokenizer) -> None:
    text = "caf\u00e9 \U0001f600 \u4e2d\u6587"
    ids = tokenizer.encode(text, add_special=False)
    data = b"".join(map(tokenizer.token_bytes, ids))
    assert data.decode().removeprefix(" ") == text


def test_partial_characters_have_distinct_token_texts(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("\U0001f9ff", add_special=False)
    texts = [tokenizer.token_text(i) for i in ids]
    assert "\ufffd" not in "".join(texts)
    assert any(text.startswith("bytes:\\x") for text in texts)


def test_a_continuation_keeps_its_space(sentencepiece: Tokenizer) -> None:
    prompt = sentencepiece.encode("the model")
    output = sentencepiece.encode("serves it", add_special=False)
    whole = sentencepiece.decode([*prompt, *output])
    assert sentencepiece.detokenizer(prompt).push(output) == whole.removeprefix("the model")
    assert whole == "the model serves it"
    assert sentencepiece.detokenizer().push(output) == "serves it"
    assert sentencepiece.detokenizer([1]).push(output) == "serves it"  # only BOS before it


def test_a_continuation_completes_the_character_of_the_prompt(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("a\U0001f9ff")
    assert len(ids) > 2
    detokenizer = byte_level.detokenizer(ids[:-1])
    assert detokenizer.push(ids[-1:]) == "\U0001f9ff"


def test_encoding_leaves_the_interpreter_free(byte_level: Tokenizer) -> None:
    text = "hello w\u00f6rld 123 " * 20_000
    worker = threading.Thread(target=byte_level.encode, args=(text,))
    turns = 0
    worker.start()
    while worker.is_alive():
        sleep(0.001)
        turns += 1
    assert turns > 5


@pytest.mark.parametrize("name", ["tokenizer.json", "text.json", "chat_template.jinja"])
def test_a_missing_file_is_named(name: str) -> None:
    metadata = byte_level_metadata() | {"tokenizer.chat_template": "{{ messages }}"}
    files = dict(gguf_text_files(metadata).files)
    del files[name]
    with pytest.raises(CoreError, match=f"text/{name}: expected"):
        load_text(files)


def test_a_damaged_tokenizer_is_a_core_error() -> None:
    files = dict(gguf_text_files(byte_level_metadata()).files)
    files["tokenizer.json"] = files["tokenizer.json"][:-20]
    with pytest.raises(CoreError, match=r"tokenizer\.json is damaged"):
        load_text(files)


def test_assets_without_a_template() -> None:
    files = {**gguf_text_files(byte_level_metadata()).files, "chat_template.jinja": b"not named"}
    assets = load_text(files)
    assert assets.chat_template is None
    assert assets.info.eos_ids == (1,)
