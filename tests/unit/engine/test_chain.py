"""The chain of steps beside its event loop: neither waits for the other."""

import asyncio
import logging
import threading
import time
from itertools import pairwise

import pytest

from engine.chain import StepChain, StepReport
from engine.errors import EngineUnavailableError
from engine.loop import EngineLoop
from engine.types import EngineState, FinishReason
from tests.support.scripted import Behaviour, ScriptedEngine, scripted_engine
from tests.support.serving import collect, ids, request, serving


def loop_of(parts: ScriptedEngine) -> EngineLoop:
    return parts.engine._loop


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[StepReport]:
    """Every report of a step, as the chain makes it."""
    made: list[StepReport] = []
    step = StepChain.step

    def seen(self: StepChain) -> StepReport:
        made.append(step(self))
        return made[-1]

    monkeypatch.setattr(StepChain, "step", seen)
    return made


async def test_each_step_is_handed_over_once_with_all_its_deltas(
    reports: list[StepReport],
) -> None:
    async with serving() as parts:
        streams = parts.engine.submit([request(str(i), [i + 1] * 5, 12) for i in range(4)])
        answers = await asyncio.gather(*map(collect, streams))
        assert len(reports) == len(parts.device.replays) == 12
        assert all(len(report.deltas) == 4 for report in reports)
        for i, deltas in enumerate(answers):
            assert ids(deltas) == parts.expected([i + 1] * 5, 12)


async def test_a_blocked_event_loop_does_not_stop_the_chain() -> None:
    async with serving() as parts:
        parts.device.delay = 0.005
        a, b = parts.engine.submit([request("a", [1], 200), request("b", [2], 30)])
        await anext(a)
        before = len(parts.device.replays)
        for _ in range(1000):  # nothing but the chain runs: this thread is the event loop's
            if len(parts.device.replays) - before >= 20:
                break
            time.sleep(0.01)  # noqa: ASYNC251
        assert len(parts.device.replays) - before >= 20
        parts.device.delay = 0.0
        # What came meanwhile is there, in order, and more follows.
        assert ids(await collect(b)) == parts.expected([2], 30)
        assert ids(await collect(a)) == parts.expected([1], 200)[1:]


async def test_the_chain_sleeps_and_wakes_in_its_own_thread() -> None:
    async with serving() as parts:
        loop = loop_of(parts)
        thread = await loop.between_steps(threading.current_thread)
        assert thread is not threading.current_thread()
        spent = await loop.between_steps(time.thread_time)
        await asyncio.sleep(0.2)
        assert await loop.between_steps(time.thread_time) - spent < 0.02
        [stream] = parts.engine.submit([request("a", [1], 3)])
        assert ids(await collect(stream)) == parts.expected([1], 3)
    assert not thread.is_alive()


async def test_an_abort_during_a_replay_frees_the_blocks_before_the_next_step() -> None:
    async with serving(max_num_seqs=2) as parts:
        parts.device.delay = 0.05
        gone, stays = parts.engine.submit([request("a", [1] * 40, 90), request("b", [2], 6)])
        await anext(gone)
        await asyncio.sleep(0.02)  # a replay runs
        steps = len(parts.device.replays)
        parts.engine.abort(["a"])
        [again] = parts.engine.submit([request("a", [3], 2)])  # the id is free at once
        assert [d.finish_reason for d in await collect(gone)] == [FinishReason.ABORT]
        await anext(again)
        later = [shape for _, shape in parts.device.replays[steps + 1 :]]
        assert later  # from the step after the one that ran on, "a" has no row
        assert all(shape.seqs <= 2 for shape in later)
        assert parts.cache.used == 2
        assert ids(await collect(stays)) == parts.expected([2], 6)
        assert ids(await collect(again)) == parts.expected([3], 2)[1:]


async def test_an_abort_that_meets_the_last_token_ends_a_sequence_once() -> None:
    async with serving() as parts:
        for i in range(50):
            [stream] = parts.engine.submit([request(str(i), [i + 1], 3)])
            await anext(stream)
            time.sleep(0.002)  # noqa: ASYNC251 - the chain ends it meanwhile
            parts.engine.abort([str(i)])
            last = (await collect(stream))[-1]
            assert last.finish_reason in (FinishReason.ABORT, FinishReason.LENGTH)
        value = parts.engine.metrics.registry.get_sample_value
        ended = [
            value("flare_requests_finished_total", {"reason": reason.value}) or 0
            for reason in FinishReason
        ]
        assert sum(ended) == 50


async def test_a_step_that_raises_ends_all_streams_and_calls(
    caplog: pytest.LogCaptureFixture,
) -> None:
    parts = scripted_engine(Behaviour(delay=0.03))
    parts.engine.start()
    loop = loop_of(parts)
    streams = parts.engine.submit([request(str(i), [i + 1], 50) for i in range(6)])
    await anext(streams[0])
    parts.device.fail = StopIteration("a peculiar failure")
    calls = [asyncio.create_task(loop.between_steps(time.time)) for _ in range(20)]
    with caplog.at_level(logging.ERROR, "flare.engine"):
        for stream in streams:
            last = (await collect(stream))[-1]
            assert (last.finish_reason, last.error) == (FinishReason.ERROR, "the engine failed")
        refused = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(refused[-1], EngineUnavailableError)
    assert parts.engine.state is EngineState.FAILED
    await parts.engine.close()
    assert "a peculiar failure" in caplog.text


async def test_results_and_errors_of_calls_come_back() -> None:
    async with serving() as parts:
        loop = loop_of(parts)
        with pytest.raises(ZeroDivisionError):
            await loop.between_steps(divmod, 1, 0)
        task = asyncio.create_task(loop.between_steps(time.sleep, 0.05))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await loop.between_steps(sum, [1, 2]) == 3


async def test_deltas_keep_their_order_while_the_loop_is_late_now_and_then() -> None:
    async with serving(max_num_seqs=4) as parts:
        streams = parts.engine.submit([request(str(i), [i + 1] * 9, 60) for i in range(4)])
        readers = [asyncio.create_task(collect(stream)) for stream in streams]
        for _ in range(10):
            time.sleep(0.01)  # noqa: ASYNC251
            await asyncio.sleep(0.001)
        for i, reader in enumerate(readers):
            deltas = await reader
            assert ids(deltas) == parts.expected([i + 1] * 9, 60)
            assert all(first.finish_reason is None for first, _ in pairwise(deltas))


async def test_a_chain_that_is_closed_during_a_call_ends() -> None:
    for _ in range(20):
        parts = scripted_engine()
        parts.engine.start()
        loop = loop_of(parts)
        call = asyncio.create_task(loop.between_steps(time.sleep, 0.005))
        await asyncio.sleep(0.002)
        await asyncio.wait_for(parts.engine.close(), 5)
        await asyncio.wait([call])


async def test_a_cancelled_engine_ends_its_thread() -> None:
    parts = scripted_engine()
    loop = loop_of(parts)
    task = asyncio.create_task(loop.run())
    thread = await loop.between_steps(threading.current_thread)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not thread.is_alive()
    with pytest.raises(EngineUnavailableError):
        await loop.between_steps(time.time)
