"""The default model, exported for real: its formats, its limits, and what it says."""

from pathlib import Path

import pytest

from engine.core.reader import open_core
from engine.core.schema import Limits
from engine.core.validate import validate
from engine.text.assets import folder_files
from engine.text.tokenizer import Tokenizer
from tests.support.batches import Part, reference_runner

BLOCKS = (7, 2, 5)
PROMPT = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
NEXT = [29, 198, 198, 314, 260, 3193, 282, 4649, 47, 198, 198, 1, 520, 9531, 198, 504]
"""Likeliest token after each prompt token: transformers on the same file, in float32."""


@pytest.mark.model
def test_formats_and_limits(default_core: Path) -> None:
    manifest = open_core(default_core).manifest
    validate(manifest)
    assert manifest.limits == Limits(64, 8192, 512)
    assert manifest.model.quantization == "q4_1+q8_0"
    assert manifest.model.eos_token_ids == (2,)
    layouts = {t.name: t.layout for t in manifest.catalog.storage}
    assert layouts["embed"] == "q8p16" and "head" not in layouts
    linears = {name for name, layout in layouts.items() if layout == "q4p16"}
    assert len(linears) == 4 * manifest.model.layers


@pytest.mark.model
def test_it_answers(default_core: Path) -> None:
    tokenizer = Tokenizer.load(folder_files(default_core / "text"))
    tokens = list(tokenizer.encode(PROMPT))
    runner, _ = reference_runner(default_core)
    logits = runner.run("prefill-32", [Part(tuple(tokens), 0, BLOCKS)])
    assert logits.argmax(axis=-1).tolist() == NEXT
    count = len(tokens)
    tokens.append(int(logits[-1].argmax()))
    while tokens[-1] != 2 and len(tokens) < count + 12:
        last = Part((tokens[-1],), len(tokens) - 1, BLOCKS, generated=True)
        logits = runner.run("decode-1", [last])
        tokens.append(int(logits[-1].argmax()))
    assert tokens[-1] == 2
    assert tokenizer.decode(tokens[count:]) == "The capital of France is Paris."
