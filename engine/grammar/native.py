"""The compiler itself, on llguidance: from a ``GrammarSpec`` to a matcher that starts its text."""

import re
from collections.abc import Collection

import numpy as np
from llguidance import LLMatcher, LLParserLimits

from engine.errors import GrammarError
from engine.grammar.compiled import Grammar, one_line, reason
from engine.grammar.source import grammar_source, marker_text, marker_token
from engine.grammar.vocabulary import native_vocabulary
from engine.text.tokenizer import Tokenizer
from engine.types import GrammarSpec


class NativeCompiler:
    """Blocks; safe to use from several threads. llguidance releases the interpreter's lock."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_ids: Collection[int]) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._vocabulary = native_vocabulary(tokenizer, vocab_size, eos_ids)
        # The defaults bound a mask to about 15 ms. A state of the lexer takes 1 to 2 KiB.
        self._limits = LLParserLimits(max_lexer_states=50_000, verbose_errors=False)

    def compile(self, spec: GrammarSpec) -> Grammar:
        """Raises GrammarError with the reason."""
        try:
            source = grammar_source(spec, self._marker(spec.after))
        except ValueError as error:
            raise GrammarError(one_line(str(error)), spec.param) from None
        start = LLMatcher(self._vocabulary, source, log_level=0, limits=self._limits)
        if (fault := reason(start)) is not None:
            raise GrammarError(_explain(fault, spec), spec.param)
        grammar = Grammar(start, self._vocab_size)
        # The first mask prepares the lexer, and shows whether there is any text at all.
        if grammar.matcher(()).fill(np.empty(grammar.mask_words, np.uint32)) is not None:
            raise GrammarError("allows no text at all", spec.param)
        return grammar

    def _marker(self, text: str | None) -> str | None:
        """``text`` in Lark's notation: a control token where it is one."""
        if text is None:
            return None
        ids = self._tokenizer.encode(text, add_special=False)
        if len(ids) == 1 and ids[0] in self._tokenizer.special_ids:
            return marker_token(ids[0])
        return marker_text(text)


def _explain(fault: str, spec: GrammarSpec) -> str:
    """The compiler's message as the end of a sentence that begins with the field's name."""
    keywords = re.search(r"Unimplemented keys: \[(.*?)\]", fault)
    if keywords is not None:
        names = keywords[1].replace('"', "'")
        return f"uses schema keywords that are not supported: {names}"
    if spec.kind == "regex":  # its place is one in our own wrapping
        fault = re.sub(r"^at \d+\(\d+\): ", "", fault)
    return f"is not supported: {fault}"
