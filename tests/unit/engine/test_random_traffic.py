"""Random traffic through the real engine: every text as if it were alone, and nothing left."""

import asyncio
from dataclasses import dataclass

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.types import FinishReason, TokenStream
from tests.support.scripted import ScriptedEngine
from tests.support.serving import request, serving


@dataclass(frozen=True, slots=True)
class Visitor:
    """A client that arrives after ``wait`` turns and leaves after ``patience`` tokens, if ever."""

    wait: int
    head: int
    length: int
    max_tokens: int
    priority: int
    salt: str | None
    scores: bool
    patience: int | None


VISITOR = st.builds(
    Visitor,
    wait=st.integers(0, 20),
    head=st.integers(1, 3),
    length=st.integers(1, 60),
    max_tokens=st.integers(1, 30),
    priority=st.integers(0, 1),
    salt=st.sampled_from([None, "S"]),
    scores=st.booleans(),
    patience=st.one_of(st.none(), st.integers(0, 10)),
)


def prompt_of(visitor: Visitor) -> list[int]:
    """Prompts share heads, so that prefixes meet in the cache."""
    return [(visitor.head * 50 + i) % 255 + 1 for i in range(visitor.length)]


async def visit(parts: ScriptedEngine, name: str, visitor: Visitor) -> None:
    for _ in range(visitor.wait):
        await asyncio.sleep(0.001)
    prompt = prompt_of(visitor)
    scores = 0 if visitor.scores else None
    asked = request(
        name,
        prompt,
        visitor.max_tokens,
        visitor.salt,
        priority=visitor.priority,
        prompt_logprobs=scores,
    )
    [stream] = parts.engine.submit([asked])
    expected = parts.expected(prompt, visitor.max_tokens)
    got = await _read(stream, visitor)
    assert got == expected[: len(got)]
    if visitor.patience is None:
        assert got == expected


async def _read(stream: TokenStream, visitor: Visitor) -> list[int]:
    got: list[int] = []
    first = True
    async for delta in stream:
        if first and visitor.scores:
            assert delta.prompt_logprobs is not None
            assert len(delta.prompt_logprobs) == visitor.length
        first = False
        got += delta.token_ids
        assert delta.finish_reason in (None, FinishReason.LENGTH)
        if visitor.patience is not None and len(got) > visitor.patience:
            await stream.aclose()
    return got


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    visitors=st.lists(VISITOR, min_size=1, max_size=10),
    num_blocks=st.integers(13, 30),
    max_step_tokens=st.sampled_from([4, 16, 32]),
    max_num_seqs=st.integers(1, 5),
    mixed=st.booleans(),
    prefix_cache=st.booleans(),
)
def test_every_visitor_gets_the_text_it_would_get_alone(
    visitors: list[Visitor],
    num_blocks: int,
    max_step_tokens: int,
    max_num_seqs: int,
    mixed: bool,
    prefix_cache: bool,
) -> None:
    async def traffic() -> None:
        async with serving(
            num_blocks=num_blocks,
            block_size=8,
            max_model_len=96,
            max_step_tokens=max_step_tokens,
            max_num_seqs=max_num_seqs,
            mixed=mixed,
            prefix_cache=prefix_cache,
        ) as parts:
            visits = [visit(parts, str(i), v) for i, v in enumerate(visitors)]
            await asyncio.wait_for(asyncio.gather(*visits), 60)

    asyncio.run(traffic())
