"""Greedy requests at random: shared beginnings, any lengths, some given up half way."""

import random
from collections.abc import Sequence

from msgspec import Struct

from engine.client import Engine
from engine.types import FinishReason, GenerationRequest, SamplingParams, TokenLogprobs

HEADS = 24
LONGEST_HEAD = 192
LONGEST_TAIL = 40
SHORT_OUTPUT = 6
LONGEST_OUTPUT = 110
WAVE = 200
GROWING = 25
"""Every so many waves of requests are of short prompts with long outputs: they all outgrow the
blocks that they began with, so that some must give theirs up."""
ABORTED = 0.03
SCORED = 0.1


class Ask(Struct, frozen=True):
    """One request. leaves_after: tokens after which its client goes away; None: it stays."""

    request: GenerationRequest
    leaves_after: int | None = None


class Answer(Struct, frozen=True):
    """What came: tokens, their log probabilities where asked for, and how it ended (None: left)."""

    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    reason: FinishReason | None
    cached: int = 0

    def agrees(self, other: "Answer") -> bool:
        """Say whether two answers to one request are the same as far as both were heard."""
        if self.reason is not None and other.reason is not None:
            same = (self.tokens, self.logprobs, self.reason)
            return same == (other.tokens, other.logprobs, other.reason)
        count = min(len(self.tokens), len(other.tokens))
        return self.tokens[:count] == other.tokens[:count]


def asks(seed: int, first: int, count: int, vocab: int) -> list[Ask]:
    """Return requests ``first`` to ``first + count`` of a seed: each always the same."""
    heads = _heads(seed, vocab)
    return [
        _ask(random.Random(f"{seed}/{i}"), i, heads, vocab) for i in range(first, first + count)
    ]


def _heads(seed: int, vocab: int) -> list[tuple[int, ...]]:
    """Beginnings that requests share: prefixes of a few long texts, so that they branch."""
    source = random.Random(f"{seed}/heads")
    texts = [_tokens(source, LONGEST_HEAD, vocab) for _ in range(6)]
    return [source.choice(texts)[: source.randint(32, LONGEST_HEAD)] for _ in range(HEADS)]


def _tokens(source: random.Random, count: int, vocab: int) -> tuple[int, ...]:
    return tuple(source.randrange(vocab) for _ in range(count))


def _ask(source: random.Random, index: int, heads: Sequence[tuple[int, ...]], vocab: int) -> Ask:
    growing = index // WAVE % GROWING == GROWING - 1
    head = source.choice(heads) if source.random() < 0.6 and not growing else ()
    prompt = head + _tokens(source, source.randint(1, LONGEST_TAIL), vocab)
    output = 1 + int(source.expovariate(1 / SHORT_OUTPUT))
    if growing:
        output = source.randint(40, LONGEST_OUTPUT)
    sampling = SamplingParams(
        max_tokens=output,
        temperature=0.0,
        ignore_eos=source.random() < 0.8,
        logprobs=1 if source.random() < SCORED else None,
    )
    leaves = source.randint(1, output) if source.random() < ABORTED else None
    return Ask(GenerationRequest(str(index), prompt, sampling), leaves)


async def answer(engine: Engine, ask: Ask) -> Answer:
    """Submit one request and hear it out, or leave."""
    [stream] = engine.submit([ask.request])
    tokens: list[int] = []
    scores: list[TokenLogprobs] = []
    reason, cached = None, 0
    async for delta in stream:
        tokens += delta.token_ids
        scores += delta.logprobs
        reason, cached = delta.finish_reason, max(cached, delta.cached_tokens)
        if ask.leaves_after is not None and len(tokens) >= ask.leaves_after:
            await stream.aclose()
            return Answer(tuple(tokens), tuple(scores), None, cached)
    return Answer(tuple(tokens), tuple(scores), reason, cached)
