"""Admission, aborts, drains, failures: what the engine does when things do not go on."""

import asyncio
import logging
import threading

import pytest

from engine.errors import (
    ContextLengthError,
    EngineUnavailableError,
    QueueFullError,
    RequestError,
)
from engine.types import EngineState, FinishReason
from tests.support.scripted import Behaviour, ScriptedEngine, scripted_engine
from tests.support.serving import collect, ids, request, serving


def gauge(parts: ScriptedEngine, name: str) -> float:
    value = parts.engine.metrics.registry.get_sample_value(name)
    assert value is not None
    return value


async def settled(parts: ScriptedEngine) -> None:
    """Wait until the loop applied what it was told."""
    for _ in range(200):
        if gauge(parts, "flare_requests_running") + gauge(parts, "flare_requests_waiting") == 0:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the engine did not settle")


async def alive(parts: ScriptedEngine) -> None:
    """A small request is served, and the blocks are back."""
    [stream] = parts.engine.submit([request("alive", [200, 201], 3)])
    assert ids(await collect(stream)) == parts.expected([200, 201], 3)
    await settled(parts)
    assert gauge(parts, "flare_kv_blocks_used") == 0


@pytest.mark.parametrize(
    ("prompt", "sampling", "error", "text"),
    [
        ([], {}, RequestError, "empty"),
        ([1, 256], {}, RequestError, "0..255"),
        ([1, 2**70], {}, RequestError, "0..255"),
        ([1, -1], {}, RequestError, "0..255"),
        ([1] * 250, {"max_tokens": 7}, ContextLengthError, "256 tokens, but 250 .* and 7 .*257"),
        ([1], {"max_tokens": -1}, RequestError, "max_tokens"),
        ([1], {"logit_bias": {256: 1.0}}, RequestError, "logit_bias"),
        ([1], {"logit_bias": {5: float("nan")}}, RequestError, "logit_bias"),
        ([1], {"stop_token_ids": frozenset({2**40})}, RequestError, "stop_token_ids"),
        ([1], {"min_tokens": 9, "max_tokens": 8}, RequestError, "min_tokens"),
        ([1], {"temperature": float("nan")}, RequestError, "temperature"),
        ([1], {"top_k": 2**40}, RequestError, "top_k"),
        ([1], {"top_p": 1.5}, RequestError, "top_p"),
        ([1], {"repetition_penalty": 0.0}, RequestError, "repetition_penalty"),
        ([1], {"logprobs": 21}, RequestError, "logprobs must"),
        ([1], {"prompt_logprobs": -1}, RequestError, "prompt_logprobs"),
    ],
)
async def test_what_cannot_be_served_is_refused_by_name(
    prompt: list[int], sampling: dict[str, object], error: type[Exception], text: str
) -> None:
    async with serving() as parts:
        with pytest.raises(error, match=text):
            parts.engine.submit([request("good", [1, 2], 2), request("bad", prompt, **sampling)])
        await alive(parts)
        assert len(parts.device.replays) == 3  # nothing of the good one was taken


async def test_more_than_the_cache_holds_is_refused_at_once() -> None:
    async with serving(num_blocks=5, block_size=16, max_model_len=256) as parts:
        assert parts.engine.model.context_length == 64
        with pytest.raises(ContextLengthError, match="64"):
            parts.engine.submit([request("big", [1] * 100, 4)])
        with pytest.raises(ContextLengthError, match="64"):
            parts.engine.submit([request("grows", [1] * 40, 30)])
        await alive(parts)
        [stream] = parts.engine.submit([request("all", [1] * 40, 24)])
        assert len(ids(await collect(stream))) == 24


async def test_the_queue_is_bounded_and_takes_all_or_none() -> None:
    async with serving(max_num_seqs=2, max_queue=3) as parts:
        parts.device.delay = 0.01
        first = parts.engine.submit([request(str(i), [i + 1], 4) for i in range(4)])
        with pytest.raises(QueueFullError):
            parts.engine.submit([request("x", [1], 4), request("y", [2], 4)])
        last = parts.engine.submit([request("z", [3], 4)])
        for stream in (*first, *last):
            assert len(ids(await collect(stream))) == 4
        await alive(parts)


async def test_a_request_id_is_used_once_at_a_time() -> None:
    async with serving() as parts:
        streams = parts.engine.submit([request("a", [1], 3)])
        with pytest.raises(RequestError, match="in use"):
            parts.engine.submit([request("a", [2], 3)])
        with pytest.raises(RequestError, match="in use"):
            parts.engine.submit([request("b", [2], 3), request("b", [2], 3)])
        await collect(streams[0])
        [again] = parts.engine.submit([request("a", [1], 3)])
        await collect(again)


async def test_closing_a_stream_aborts_its_sequence_and_no_other() -> None:
    async with serving() as parts:
        parts.device.delay = 0.005
        a, b = parts.engine.submit([request("a", [1], 200), request("b", [2], 30)])
        await anext(a)
        await a.aclose()
        await a.aclose()
        assert [d async for d in a] == []
        assert ids(await collect(b)) == parts.expected([2], 30)
        await alive(parts)


async def test_abort_ends_the_stream_at_once_also_while_waiting() -> None:
    async with serving(max_num_seqs=1) as parts:
        parts.device.delay = 0.02
        streams = parts.engine.submit([request(str(i), [i + 1], 100) for i in range(3)])
        await anext(streams[0])
        parts.engine.abort(["2", "0", "nobody"])
        for index in (0, 2):
            deltas = await collect(streams[index])
            assert deltas[-1].finish_reason is FinishReason.ABORT
        parts.device.delay = 0.0
        assert ids(await collect(streams[1])) == parts.expected([2], 100)
        await alive(parts)


async def test_an_abort_before_the_first_step_costs_no_replay() -> None:
    async with serving() as parts:
        held = threading.Event()
        call = asyncio.create_task(parts.engine._loop.between_steps(held.wait))
        await asyncio.sleep(0)
        [stream] = parts.engine.submit([request("a", [1], 5)])
        await stream.aclose()
        held.set()
        await call
        await settled(parts)
        assert not parts.device.replays


async def test_an_abort_during_a_long_prefill_frees_the_blocks() -> None:
    async with serving(max_step_tokens=8) as parts:
        parts.device.delay = 0.01
        [stream] = parts.engine.submit([request("a", [1] * 200, 5)])
        await asyncio.sleep(0.05)
        assert gauge(parts, "flare_kv_blocks_used") == 13
        await stream.aclose()
        await settled(parts)
        assert gauge(parts, "flare_kv_blocks_used") == 0
        assert len(parts.device.replays) < 25


async def test_a_cancelled_reader_can_still_close_its_stream() -> None:
    async with serving() as parts:
        parts.device.delay = 0.02
        [stream] = parts.engine.submit([request("a", [1], 100)])
        task = asyncio.create_task(collect(stream))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await stream.aclose()
        await settled(parts)


async def test_a_failing_step_fails_the_engine_clearly(caplog: pytest.LogCaptureFixture) -> None:
    parts = scripted_engine()
    parts.engine.start()
    parts.device.delay = 0.005
    streams = parts.engine.submit([request("a", [1], 50), request("b", [2] * 90, 50)])
    await anext(streams[0])
    parts.device.fail = ValueError("the device is gone")
    with caplog.at_level(logging.ERROR, "flare.engine"):
        for stream in streams:
            last = (await collect(stream))[-1]
            assert last.finish_reason is FinishReason.ERROR
            assert last.error == "the engine failed"
            assert parts.engine.state is EngineState.FAILED
        with pytest.raises(EngineUnavailableError, match="failed"):
            parts.engine.submit([request("c", [3], 1)])
        await asyncio.sleep(0.01)
    assert "the device is gone" in caplog.text
    await parts.engine.drain(5)
    await parts.engine.close()
    assert parts.engine.state is EngineState.FAILED


async def test_a_row_that_is_not_finite_fails_its_sequence_only() -> None:
    sick = tuple(range(100, 140))
    behaviour = Behaviour(nan_prompts=frozenset({sick}))
    async with serving(behaviour) as parts:
        for round_ in range(2):
            a, b = parts.engine.submit(
                [request(f"sick{round_}", sick, 9), request(f"well{round_}", [2], 9)]
            )
            bad = await collect(a)
            assert [d.finish_reason for d in bad] == [FinishReason.ERROR]
            assert "not finite" in (bad[0].error or "")
            assert ids(await collect(b)) == parts.expected([2], 9)
        assert parts.cache.idle == 0
        scored = request("scored", [*sick, 7], 1, prompt_logprobs=0)
        [stream] = parts.engine.submit([scored])
        assert (await collect(stream))[-1].finish_reason is FinishReason.ERROR
        await alive(parts)
        assert parts.engine.state is EngineState.READY


async def test_drain_refuses_new_work_and_lets_the_rest_finish() -> None:
    parts = scripted_engine(max_num_seqs=2)
    with pytest.raises(EngineUnavailableError, match="loading"):
        parts.engine.submit([request("early", [1], 1)])
    parts.engine.start()
    streams = parts.engine.submit([request(str(i), [i + 1], 20) for i in range(4)])
    drained = asyncio.create_task(parts.engine.drain(10))
    await asyncio.sleep(0)
    assert parts.engine.state is EngineState.DRAINING
    with pytest.raises(EngineUnavailableError, match="draining"):
        parts.engine.submit([request("late", [1], 1)])
    for i, stream in enumerate(streams):
        assert ids(await collect(stream)) == parts.expected([i + 1], 20)
    await asyncio.wait_for(drained, 5)
    await parts.engine.close()


async def test_a_drain_that_takes_too_long_ends_with_errors() -> None:
    parts = scripted_engine()
    parts.engine.start()
    parts.device.delay = 0.02
    [stream] = parts.engine.submit([request("a", [1], 200)])
    await anext(stream)
    await asyncio.wait_for(parts.engine.drain(0.1), 2)
    last = (await collect(stream))[-1]
    assert last.finish_reason is FinishReason.ERROR
    assert "shutting down" in (last.error or "")
    await asyncio.wait_for(parts.engine.close(), 2)
    await parts.engine.close()


async def test_close_ends_running_streams_and_needs_no_start() -> None:
    await scripted_engine().engine.close()
    parts = scripted_engine()
    parts.engine.start()
    with pytest.raises(RuntimeError, match="started"):
        parts.engine.start()
    parts.device.delay = 0.02
    [stream] = parts.engine.submit([request("a", [1], 200)])
    await anext(stream)
    await parts.engine.close()
    assert (await collect(stream))[-1].finish_reason is FinishReason.ERROR
    assert parts.engine.state is EngineState.DRAINING


async def test_an_idle_engine_does_not_spin() -> None:
    async with serving() as parts:
        await alive(parts)
        await asyncio.sleep(0.05)  # the chain rests once, in its own time
        rests = 0
        original = parts.scheduler.schedule

        def counted() -> object:
            nonlocal rests
            rests += 1
            return original()

        parts.scheduler.schedule = counted  # type: ignore[method-assign]
        await asyncio.sleep(0.1)
        assert rests == 0
        del parts.scheduler.schedule


async def test_describe_is_the_config_object_and_a_copy() -> None:
    async with serving(max_num_seqs=3) as parts:
        first = parts.engine.describe()
        first["scheduler"]["max_num_seqs"] = 99
        assert parts.engine.describe()["scheduler"]["max_num_seqs"] == 3
