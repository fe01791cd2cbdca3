"""Metrics: their names, and what moves them."""

import asyncio

import pytest
from prometheus_client import generate_latest

from tests.support.scripted import ScriptedEngine
from tests.support.serving import collect, request, serving

NAMES = (
    "flare_requests_running",
    "flare_requests_waiting",
    "flare_prompt_tokens_total",
    "flare_generation_tokens_total",
    "flare_time_to_first_token_seconds_count",
    "flare_inter_token_latency_seconds_count",
    "flare_end_to_end_latency_seconds_count",
    "flare_queue_time_seconds_count",
    "flare_kv_blocks_used",
    "flare_kv_blocks_free",
    "flare_prefix_cache_hits_total",
    "flare_prefix_cache_queries_total",
    "flare_preemptions_total",
    "flare_speculative_accepted_total",
    "flare_speculative_proposed_total",
)


def value(parts: ScriptedEngine, name: str, **labels: str) -> float:
    found = parts.engine.metrics.registry.get_sample_value(name, labels)
    assert found is not None, name
    return found


async def test_every_series_exists_from_the_start() -> None:
    async with serving() as parts:
        for name in NAMES:
            assert value(parts, name) >= 0
        for graph in ("decode-1", "decode-4", "prefill-32", "mixed-8"):
            kind = graph.split("-")[0]
            assert value(parts, "flare_graph_launches_total", kind=kind, graph=graph) == 0
        assert b"flare_" in generate_latest(parts.engine.metrics.registry)


async def test_tokens_launches_and_times_are_counted() -> None:
    async with serving() as parts:
        [stream] = parts.engine.submit([request("a", [1] * 20, 6)])
        await collect(stream)
        assert value(parts, "flare_prompt_tokens_total") == 20
        assert value(parts, "flare_generation_tokens_total") == 6
        assert value(parts, "flare_time_to_first_token_seconds_count") == 1
        assert value(parts, "flare_inter_token_latency_seconds_count") == 5
        assert value(parts, "flare_end_to_end_latency_seconds_count") == 1
        assert value(parts, "flare_queue_time_seconds_count") == 1
        prefill = {"kind": "prefill", "graph": "prefill-32"}
        assert value(parts, "flare_graph_launches_total", **prefill) == 1
        decode = {"kind": "decode", "graph": "decode-1"}
        assert value(parts, "flare_graph_launches_total", **decode) == 5
        assert value(parts, "flare_padded_tokens_total", kind="prefill") == 12
        assert value(parts, "flare_step_duration_seconds_count", kind="decode") == 5
        assert value(parts, "flare_requests_finished_total", reason="length") == 1


@pytest.mark.parametrize("mixed", [True, False])
async def test_a_step_with_both_sorts_is_mixed_whichever_family_serves_it(mixed: bool) -> None:
    async with serving(mixed=mixed) as parts:
        parts.device.delay = 0.01
        [first] = parts.engine.submit([request("a", [1] * 5, 20)])
        await anext(first)
        [second] = parts.engine.submit([request("b", [2] * 20, 2)])
        await asyncio.gather(collect(first), collect(second))
        assert value(parts, "flare_step_duration_seconds_count", kind="mixed") == 1
        launches = {"kind": "mixed", "graph": "mixed-32"}
        found = parts.engine.metrics.registry.get_sample_value(
            "flare_graph_launches_total", launches
        )
        assert found == (1 if mixed else None)


async def test_prefix_hits_are_counted_in_tokens() -> None:
    async with serving() as parts:
        for name in ("a", "b"):
            [stream] = parts.engine.submit([request(name, [1] * 40, 1)])
            await collect(stream)
        assert value(parts, "flare_prefix_cache_queries_total") == 80
        assert value(parts, "flare_prefix_cache_hits_total") == 32


async def test_request_ids_never_become_labels() -> None:
    async with serving() as parts:
        before = len(generate_latest(parts.engine.metrics.registry).splitlines())
        for i in range(5):
            [stream] = parts.engine.submit([request(f"unique-{i}", [i + 1], 1)])
            await collect(stream)
        text = generate_latest(parts.engine.metrics.registry)
        assert b"unique" not in text
        assert len(text.splitlines()) == before
