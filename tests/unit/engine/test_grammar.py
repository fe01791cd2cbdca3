"""Sequences with a grammar, through the real engine on the scripted device."""

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from engine.errors import RequestError
from engine.types import CompiledGrammar, FinishReason, GenerationRequest, GrammarSpec
from tests.support.api import behaviour
from tests.support.grammars import compiler
from tests.support.serving import collect, ids, request, serving
from tests.support.words import EOS, FIRST_BYTE, VOCAB_SIZE, text_assets

A, B, C = (FIRST_BYTE + ord(char) for char in "abc")
JSON = GrammarSpec("json_object")
WORDS = GrammarSpec("regex", "([a-c]{3} ){12}end")


async def asking(
    spec: GrammarSpec, name: str, prompt: Sequence[int], max_tokens: int = 40, **sampling: Any
) -> GenerationRequest:
    """A greedy request with a compiled grammar."""
    plain = request(name, prompt, max_tokens, grammar=spec, **sampling)
    return replace(plain, grammar=await compiler().compile(spec))


def text(tokens: Sequence[int]) -> str:
    return text_assets().tokenizer.decode(tokens)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_the_text_follows_the_grammar(temperature: float) -> None:
    async with serving(behaviour()) as parts:
        requests = [
            await asking(WORDS, str(i), [A, B, C + i], 80, temperature=temperature, seed=i)
            for i in range(4)
        ]
        answers = await asyncio.gather(*map(collect, parts.engine.submit(requests)))
        for deltas in answers:
            assert re.fullmatch(WORDS.text, text(ids(deltas)))
            assert deltas[-1].finish_reason is FinishReason.STOP
            assert not set(ids(deltas)) & set(EOS)
        assert len({text(ids(deltas)) for deltas in answers}) == 4


async def test_a_complete_text_ends_without_an_end_token_also_at_its_last_token() -> None:
    async with serving(behaviour()) as parts:
        spec = GrammarSpec("regex", "abc")
        asked = [await asking(spec, str(n), [A], n) for n in (2, 3, 4)]
        cut, exact, short = [await collect(s) for s in parts.engine.submit(asked)]
        assert ids(cut) == [A, B]
        assert cut[-1].finish_reason is FinishReason.LENGTH
        for deltas in (exact, short):
            assert ids(deltas) == [A, B, C]
            assert deltas[-1].token_ids == ()
            assert deltas[-1].finish_reason is FinishReason.STOP


async def test_end_tokens_are_drawn_where_the_text_may_end() -> None:
    script = behaviour(scripts={(A,): [B, EOS[0]]})
    async with serving(script) as parts:
        spec = GrammarSpec("regex", "b+")
        [stream] = parts.engine.submit([await asking(spec, "a", [A])])
        deltas = await collect(stream)
        assert ids(deltas) == [B, EOS[0]]
        assert deltas[-1].finish_reason is FinishReason.STOP


async def test_end_tokens_are_not_drawn_before_the_text_may_end() -> None:
    script = behaviour(scripts={(A,): []})  # wants to end at once
    async with serving(script) as parts:
        [stream] = parts.engine.submit([await asking(GrammarSpec("regex", "bc"), "a", [A])])
        assert ids(await collect(stream)) == [B, C]


async def test_min_tokens_and_ignore_eos_hold_as_long_as_the_grammar_allows() -> None:
    script = behaviour(scripts={(A,): []})
    more, word = GrammarSpec("regex", "b+"), GrammarSpec("regex", "bc")
    async with serving(script) as parts:
        asked = [
            await asking(more, "min", [A], min_tokens=4),
            await asking(more, "ignore", [A], 9, ignore_eos=True),
            await asking(word, "min word", [A], min_tokens=20),
            await asking(word, "ignore word", [A], ignore_eos=True),
            await asking(more, "stop", [A], min_tokens=3, stop_token_ids=frozenset({B})),
        ]
        answers = [await collect(s) for s in parts.engine.submit(asked)]
        least, ignore, min_word, ignore_word, stop = answers
        assert ids(least) == [B] * 4 + [EOS[0]]
        assert ids(ignore) == [B] * 9
        assert ignore[-1].finish_reason is FinishReason.LENGTH
        for deltas in (min_word, ignore_word):
            assert ids(deltas) == [B, C]
            assert deltas[-1].finish_reason is FinishReason.STOP
        assert ids(stop) == [B]  # nothing but a stop token is left


async def test_bias_does_not_get_past_the_grammar() -> None:
    async with serving(behaviour()) as parts:
        bias = {C: 100.0, EOS[0]: 100.0}
        asked = await asking(GrammarSpec("regex", "ab"), "a", [A], logit_bias=bias)
        assert ids(await collect(parts.engine.submit([asked])[0])) == [A, B]


@pytest.mark.parametrize("mixed", [True, False])
async def test_a_preempted_sequence_resumes_within_its_grammar(mixed: bool) -> None:
    prompts = [[FIRST_BYTE + i] * 20 for i in range(3)]

    async def texts(**options: Any) -> tuple[list[str], float]:
        async with serving(behaviour(), mixed=mixed, max_num_seqs=3, **options) as parts:
            asked = [
                await asking(WORDS, str(i), p, 60, temperature=1.0, seed=i)
                for i, p in enumerate(prompts)
            ]
            answers = await asyncio.gather(*map(collect, parts.engine.submit(asked)))
            count = parts.engine.metrics.registry.get_sample_value("flare_preemptions_total")
            return [text(ids(deltas)) for deltas in answers], count or 0

    alone, none = await texts(num_blocks=65)
    squeezed, some = await texts(num_blocks=12, block_size=8)
    assert none == 0
    assert some > 0
    assert squeezed == alone
    assert all(re.fullmatch(WORDS.text, answer) for answer in alone)


async def test_neighbours_are_left_alone() -> None:
    prompts = [[FIRST_BYTE + 7 * i + j for j in range(5)] for i in range(3)]
    async with serving(behaviour()) as parts:
        plain = [request(f"p{i}", prompt, 20) for i, prompt in enumerate(prompts)]
        requests = [plain[0], await asking(WORDS, "g", [A], 80), *plain[1:]]
        answers = await asyncio.gather(*map(collect, parts.engine.submit(requests)))
        for prompt, deltas in zip(prompts, (answers[0], *answers[2:]), strict=True):
            assert ids(deltas) == parts.expected(prompt, 20)


async def test_a_draw_does_not_depend_on_its_mates() -> None:
    async with serving(behaviour(), max_num_seqs=4) as parts:
        found = set()
        for mates in range(4):
            asked = [await asking(JSON, f"{mates}", [A, B], 30, temperature=1.2, seed=5)]
            asked += [
                await asking(WORDS, f"{mates}-{i}", [C + i] * 9, 30, temperature=1.0, seed=i)
                for i in range(mates)
            ]
            answers = await asyncio.gather(*map(collect, parts.engine.submit(asked)))
            found.add(tuple(ids(answers[0])))
        assert len(found) == 1


async def test_many_json_objects_at_once() -> None:
    """H35: each is JSON, or cut by its length."""
    async with serving(behaviour(), max_num_seqs=8) as parts:
        asked = [
            await asking(JSON, str(i), [FIRST_BYTE + i], 64, temperature=1.0, seed=i)
            for i in range(30)
        ]
        for deltas in await asyncio.gather(*map(collect, parts.engine.submit(asked))):
            if deltas[-1].finish_reason is FinishReason.STOP:
                assert isinstance(json.loads(text(ids(deltas))), dict)
            else:
                assert deltas[-1].finish_reason is FinishReason.LENGTH
                assert len(ids(deltas)) == 64


@dataclass
class Failing:
    """A grammar that allows one id until it has been taken ``steps`` times, and then fails."""

    steps: int
    mask_words: int = -(-VOCAB_SIZE // 32)
    ended: bool = False

    def matcher(self, output_ids: Sequence[int]) -> "Failing":
        return Failing(self.steps - len(output_ids))

    def fill(self, mask: NDArray[np.uint32]) -> str | None:
        mask[:] = 0
        mask[A // 32] = 1 << A % 32
        return "too complex" if self.steps == 0 else None

    def accept(self, token_id: int) -> None:
        assert token_id == A
        self.steps -= 1


async def test_a_grammar_that_cannot_go_on_ends_its_own_sequence_only() -> None:
    failing: CompiledGrammar = Failing(3)
    async with serving(behaviour()) as parts:
        bad = replace(request("bad", [A], 9, grammar=JSON), grammar=failing)
        streams = parts.engine.submit([request("x", [B], 20), bad, request("y", [C], 20)])
        first, deltas, last = await asyncio.gather(*map(collect, streams))
        assert ids(deltas) == [A] * 3
        assert deltas[-1].finish_reason is FinishReason.ERROR
        assert deltas[-1].error == "the grammar cannot go on: too complex"
        assert ids(first) == parts.expected([B], 20)
        assert ids(last) == parts.expected([C], 20)


async def test_a_grammar_and_its_compiled_form_go_together() -> None:
    async with serving(behaviour()) as parts:
        with pytest.raises(RequestError, match="go together"):
            parts.engine.submit([request("a", [A], 4, grammar=JSON)])
