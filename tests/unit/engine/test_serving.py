"""The real engine on the scripted device: texts, streams, scheduling seen from outside."""

import asyncio

import pytest

from engine.types import FinishReason
from tests.support.serving import collect, ids, request, serving


@pytest.mark.parametrize("mixed", [True, False])
async def test_concurrent_requests_get_their_own_texts(mixed: bool) -> None:
    prompts = [[(7 * i + j) % 250 + 1 for j in range(3 + 11 * i)] for i in range(9)]
    async with serving(mixed=mixed) as parts:
        requests = [request(str(i), p, 20 + i) for i, p in enumerate(prompts)]
        streams = parts.engine.submit(requests)
        answers = await asyncio.gather(*map(collect, streams))
        for i, (prompt, deltas) in enumerate(zip(prompts, answers, strict=True)):
            assert ids(deltas) == parts.expected(prompt, 20 + i)
            assert [d.finish_reason for d in deltas[:-1]] == [None] * (len(deltas) - 1)
            assert deltas[-1].finish_reason is FinishReason.LENGTH
        used = {graph for graph, _ in parts.device.replays}
        assert any(g.startswith("mixed") for g in used) is mixed
