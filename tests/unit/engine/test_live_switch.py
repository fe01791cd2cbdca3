"""The live switch on a scripted device: nothing dropped, no wrong token, no gap of many steps."""

import asyncio
import random
from collections.abc import Callable
from itertools import pairwise

import pytest

from engine.chain import StepChain, StepReport
from engine.errors import (
    DeviceError,
    EngineUnavailableError,
    LiveSwitchOffError,
    SelectionError,
)
from engine.types import FinishReason
from tests.support.scripted import Behaviour, ScriptedEngine, scripted_engine
from tests.support.serving import collect, ids, request, serving

SWITCHES = 100


async def traffic(parts: ScriptedEngine, name: int, stop: asyncio.Event) -> int:
    """One client after the other until ``stop``; every text is right. Returns how many."""
    draw = random.Random(name)
    served = 0
    while not stop.is_set():
        prompt = [draw.randint(1, 255) for _ in range(draw.randint(1, 90))]
        count = draw.randint(1, 40)
        [stream] = parts.engine.submit([request(f"{name}-{served}", prompt, count)])
        deltas = await asyncio.wait_for(collect(stream), 60)
        assert ids(deltas) == parts.expected(prompt, count)
        assert deltas[-1].finish_reason is FinishReason.LENGTH
        served += 1
    return served


@pytest.mark.parametrize("num_blocks", [65, 17])
async def test_a_hundred_switches_under_load_drop_nothing(num_blocks: int) -> None:
    """Also while sequences are preempted (few blocks)."""
    async with serving(num_blocks=num_blocks, max_num_seqs=5, max_queue=64) as parts:
        stop = asyncio.Event()
        clients = [asyncio.create_task(traffic(parts, i, stop)) for i in range(8)]
        for i in range(SWITCHES):
            described = await parts.engine.switch((True, False, None)[i % 3])
            assert described["graphs"]["epoch"] == i + 1
            await asyncio.sleep(0.001 * (i % 5))
        stop.set()
        served = sum(await asyncio.gather(*clients))
        assert served >= len(clients)
        kinds = {graph.partition("-")[0] for graph, _ in parts.device.replays}
        assert kinds == {"decode", "prefill", "mixed"}


async def test_between_two_steps_one_call_of_a_switch_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So a running sequence is held up by one graph at most, however many a family has."""
    events: list[str] = []
    step, between = StepChain.step, StepChain.between

    def seen_step(self: StepChain) -> StepReport:
        events.append("step")
        return step(self)

    def seen_between(self: StepChain, call: Callable[[], None]) -> None:
        def seen_call() -> None:
            events.append("call")
            call()

        between(self, seen_call)

    monkeypatch.setattr(StepChain, "step", seen_step)
    monkeypatch.setattr(StepChain, "between", seen_between)
    async with serving(mixed=False, max_model_len=1024, num_blocks=70) as parts:
        [stream] = parts.engine.submit([request("long", [1, 2, 3], 900)])
        reader = asyncio.create_task(collect(stream))
        await asyncio.sleep(0.01)
        for i in range(20):
            await parts.engine.switch(i % 2 == 0)
            assert not reader.done()
        assert ids(await reader) == parts.expected([1, 2, 3], 900)
    busy = events[events.index("step") : len(events) - events[::-1].index("step")]
    assert busy.count("call") > 40
    assert all(pair != ("call", "call") for pair in pairwise(busy))


async def test_what_serves_before_and_after_is_what_is_described() -> None:
    async with serving(mixed=True) as parts:
        before = parts.engine.describe()["graphs"]
        after = await parts.engine.switch(False)
        assert after == parts.engine.describe()
        graphs = after["graphs"]
        assert (graphs["requested"], graphs["family"], graphs["epoch"]) == (False, "separate", 1)
        assert graphs["retained"]["mixed"] == 0
        assert graphs["pruned"]["mixed"] == before["captured"]["mixed"] > 0
        assert after["ranks"][0]["retained"] == sum(graphs["retained"].values())
        again = await parts.engine.switch(None)
        assert (again["graphs"]["requested"], again["graphs"]["family"]) == (None, "mixed")
        assert again["graphs"]["epoch"] == 2
        assert parts.device.made == ["mixed-8", "mixed-32"]  # the others never left


async def test_metrics_know_the_new_graphs_and_keep_the_old_counts() -> None:
    async with serving(mixed=False) as parts:

        def launches() -> dict[str, float]:
            return {
                sample.labels["graph"]: sample.value
                for family in parts.engine.metrics.registry.collect()
                for sample in family.samples
                if sample.name == "flare_graph_launches_total" and sample.labels["kind"] == "mixed"
            }

        async def both_sorts(first: int) -> None:
            prompts = [[first + i] * (3 + 30 * i) for i in range(3)]
            requests = [request(f"{first}-{i}", p, 30) for i, p in enumerate(prompts)]
            await asyncio.gather(*map(collect, parts.engine.submit(requests)))

        assert launches() == {}
        await both_sorts(10)
        await parts.engine.switch(True)
        assert launches() == {"mixed-8": 0, "mixed-32": 0}
        await both_sorts(20)
        counted = launches()
        assert sum(counted.values()) > 0
        await parts.engine.switch(False)
        await both_sorts(30)
        assert launches() == counted
        await parts.engine.switch(True)
        assert launches() == counted


async def test_a_refused_switch_changes_nothing() -> None:
    async with serving(mixed=False, captured_mixed=False) as parts:
        before = parts.engine.describe()
        with pytest.raises(SelectionError, match="exported without mixed graphs"):
            await parts.engine.switch(True)
        assert parts.engine.describe() == before
        [stream] = parts.engine.submit([request("a", [5], 5)])
        assert ids(await collect(stream)) == parts.expected([5], 5)


async def test_a_switch_that_fails_halfway_changes_nothing() -> None:
    async with serving(mixed=False) as parts:
        before = parts.engine.describe()
        parts.device.refuse = DeviceError("no memory left")
        with pytest.raises(DeviceError, match="no memory left"):
            await parts.engine.switch(True)
        assert parts.engine.describe() == before
        [stream] = parts.engine.submit([request("a", [5] * 40, 5)])
        assert ids(await collect(stream)) == parts.expected([5] * 40, 5)
        assert (await parts.engine.switch(True))["graphs"]["epoch"] == 1


async def test_requests_to_switch_are_served_one_after_the_other() -> None:
    async with serving(mixed=False) as parts:
        wanted = [i % 2 == 0 for i in range(8)]
        found = await asyncio.gather(*map(parts.engine.switch, wanted))
        assert [one["graphs"]["epoch"] for one in found] == list(range(1, 9))
        assert [one["graphs"]["requested"] for one in found] == wanted


async def test_a_caller_that_leaves_does_not_stop_a_switch() -> None:
    async with serving(mixed=False) as parts:
        caller = asyncio.create_task(parts.engine.switch(True))
        await asyncio.sleep(0)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        after = await parts.engine.switch(None)  # waits for its turn
        assert after["graphs"]["epoch"] == 2


async def test_an_engine_that_is_closed_refuses() -> None:
    async with serving() as parts:
        pass
    with pytest.raises(EngineUnavailableError):
        await parts.engine.switch(False)


async def test_an_engine_that_closes_meanwhile_ends_the_switch() -> None:
    parts = scripted_engine(Behaviour(delay=0.05), mixed=False)
    parts.engine.start()
    [stream] = parts.engine.submit([request("a", [5] * 40, 50)])
    switching = asyncio.create_task(parts.engine.switch(True))
    await asyncio.sleep(0.07)
    await parts.engine.close()
    with pytest.raises(EngineUnavailableError, match="shutting down"):
        await switching
    assert (await collect(stream))[-1].finish_reason is FinishReason.ERROR


async def test_without_a_live_switch_it_is_refused_by_name() -> None:
    async with serving(live_switch=False) as parts:
        with pytest.raises(LiveSwitchOffError, match="live switch"):
            await parts.engine.switch(False)
