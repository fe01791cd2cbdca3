"""Grammars over the tiny tokenizer, for tests without a model."""

import json
from typing import Any

import numpy as np

from engine.grammar.compiler import GrammarCompiler
from engine.types import CompiledGrammar, GrammarMatcher, GrammarSpec
from tests.support.words import EOS, VOCAB_SIZE, text_assets


def compiler() -> GrammarCompiler:
    """A compiler over the tiny tokenizer. Use it on one event loop."""
    return GrammarCompiler(text_assets().tokenizer, VOCAB_SIZE, EOS)


def schema(value: Any) -> GrammarSpec:
    """The grammar of JSON of a schema."""
    return GrammarSpec("json_schema", json.dumps(value))


def allowed(matcher: GrammarMatcher, words: int) -> set[int]:
    """The ids that may come next."""
    mask = np.zeros(words, np.uint32)
    assert matcher.fill(mask) is None
    return set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())


def verdict(grammar: CompiledGrammar, text: str) -> str:
    """``refused``, or whether the text may go on: ``open``, ``may end``, ``ended``."""
    matcher = grammar.matcher(())
    for token_id in text_assets().tokenizer.encode(text):
        if matcher.ended or token_id not in allowed(matcher, grammar.mask_words):
            return "refused"
        matcher.accept(token_id)
    if matcher.ended:
        return "ended"
    return "may end" if allowed(matcher, grammar.mask_words) & set(EOS) else "open"
