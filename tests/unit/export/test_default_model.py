"""The default model, exported for real: its formats, its limits, and what it says."""

from pathlib import Path

import pytest

from engine.core.reader import open_core
from engine.core.schema import Limits
from engine.core.validate import validate
from engine.export.pipeline import export_core
from engine.export.settings import ExportConfig
from engine.text.tokenizer import Tokenizer
from tests.support.launches import Runner, Segment

PROMPT = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
NEXT = [29, 198, 198, 314, 260, 3193, 282, 4649, 47, 198, 198, 1, 520, 9531, 198, 504]
"""Likeliest token after each prompt token: transformers on the same file, in float32."""


@pytest.fixture(scope="module")
def core(default_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("default") / "default.core"
    return export_core(ExportConfig(str(default_gguf), output))


@pytest.mark.model
def test_formats_and_limits(core: Path) -> None:
    manifest = open_core(core).manifest
    validate(manifest)
    assert manifest.limits == Limits(64, 8192, 512)
    assert manifest.model.quantization == "q4_1+q8_0"
    assert manifest.model.eos_token_ids == (2,)
    layouts = {t.name: t.layout for t in manifest.catalog.storage}
    assert layouts["embed"] == "q8p16" and "head" not in layouts
    linears = {name for name, layout in layouts.items() if layout == "q4p16"}
    assert len(linears) == 4 * manifest.model.layers


@pytest.mark.model
def test_it_answers(core: Path) -> None:
    tokenizer = Tokenizer.load(core / "text")
    tokens = list(tokenizer.encode(PROMPT))
    runner = Runner(core)
    (logits,) = runner.run("prefill-32", [Segment(0, tokens)])
    assert logits.argmax(axis=-1).tolist() == NEXT
    count = len(tokens)
    tokens.append(int(logits[-1].argmax()))
    while tokens[-1] != 2 and len(tokens) < count + 12:
        segment = Segment(0, tokens[-1:], len(tokens) - 1, generated=True)
        (logits,) = runner.run("decode-1", [segment])
        tokens.append(int(logits[-1].argmax()))
    assert tokens[-1] == 2
    assert tokenizer.decode(tokens[count:]) == "The capital of France is Paris."
