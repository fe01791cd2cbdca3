"""The live switch on native kernels: the same bits across switches, and nothing kept of the old."""

import asyncio
import gc
import shutil
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.client import Engine
from engine.config import EngineConfig
from engine.device.cpu.device import CpuExecutable
from engine.errors import SelectionError
from engine.factory import load_engine
from engine.types import GenerationRequest, SamplingParams, TokenDelta
from tests.support.cores import CoreSpec, write_core
from tests.support.serving import collect

LENGTHS = (1, 5, 63, 64, 65, 130, 150)


@pytest.fixture(scope="module", params=["q4p16", "bf16p16"])
def core(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = CoreSpec(layout=request.param, max_num_seqs=4, max_step_tokens=32)
    return write_core(tmp_path_factory.mktemp("cores") / "random.core", spec)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator["weakref.WeakSet[CpuExecutable]"]:
    """Every executable that lives."""
    alive: weakref.WeakSet[CpuExecutable] = weakref.WeakSet()
    init = CpuExecutable.__init__

    def seen(self: CpuExecutable, *arguments: Any) -> None:
        init(self, *arguments)
        alive.add(self)

    monkeypatch.setattr(CpuExecutable, "__init__", seen)
    yield alive


def requests(label: str) -> list[GenerationRequest]:
    """Greedy and drawn, long and short; three share a prompt head."""
    made = []
    for i, length in enumerate(LENGTHS):
        prompt = tuple((j * 7 + (0 if length >= 64 else i)) % 85 + 3 for j in range(length))
        sampling = SamplingParams(
            max_tokens=40, temperature=float(i % 2), seed=i, ignore_eos=True, logprobs=2
        )
        made.append(GenerationRequest(f"{label}{i}", prompt, sampling))
    return made


def answer(deltas: list[TokenDelta]) -> list[Any]:
    return [(delta.token_ids, delta.logprobs) for delta in deltas]


def engine_of(core: Path, **config: Any) -> Engine:
    return load_engine(EngineConfig(core=core, threads=1, **{"live_switch": True, **config}))


def used(engine: Engine) -> set[str]:
    return {
        sample.labels["kind"]
        for family in engine.metrics.registry.collect()
        for sample in family.samples
        if sample.name == "flare_graph_launches_total" and sample.value
    }


async def in_company(engine: Engine, label: str) -> list[list[Any]]:
    return [answer(d) for d in await asyncio.gather(*map(collect, engine.submit(requests(label))))]


async def test_answers_have_the_same_bits_across_switches(core: Path) -> None:
    still = engine_of(core, mixed_prefill=False, live_switch=False)
    still.start()
    expected = await in_company(still, "s")
    await still.close()
    engine = engine_of(core, mixed_prefill=False)
    engine.start()
    over, switches = False, 0

    async def switching() -> None:
        nonlocal switches
        while not over:
            await engine.switch(switches % 2 == 0)
            switches += 1

    task = asyncio.create_task(switching())
    for round_number in range(12):
        assert await in_company(engine, f"r{round_number}-") == expected
    over = True
    await task
    assert switches >= 6
    assert engine.describe()["graphs"]["epoch"] == switches
    assert used(engine) == {"decode", "prefill", "mixed"}
    await engine.close()


async def test_nothing_is_held_for_what_is_not_selected(
    core: Path, made: "weakref.WeakSet[CpuExecutable]"
) -> None:
    engine = engine_of(core, mixed_prefill=True)
    engine.start()
    graphs = engine.describe()["graphs"]
    assert len(made) == sum(graphs["retained"].values())
    for requested in (False, True, False):
        graphs = (await engine.switch(requested))["graphs"]
        gc.collect()
        assert len(made) == sum(graphs["retained"].values())
        assert (graphs["retained"]["mixed"] > 0) is requested
        await in_company(engine, str(requested) + str(graphs["epoch"]))
    await engine.close()


async def test_what_cannot_be_served_is_refused_as_at_load(core: Path, tmp_path: Path) -> None:
    engine = engine_of(core, max_step_tokens=4)
    engine.start()
    before = engine.describe()
    with pytest.raises(SelectionError, match="mixed-8: takes 8 tokens") as caught:
        await engine.switch(True)
    with pytest.raises(SelectionError) as at_load:
        engine_of(core, max_step_tokens=4, mixed_prefill=True)
    assert (str(caught.value), caught.value.reasons) == (str(at_load.value), at_load.value.reasons)
    assert engine.describe() == before
    await engine.close()


async def test_what_lies_at_the_path_by_now_does_not_matter(tmp_path: Path) -> None:
    core = write_core(tmp_path / "one.core", CoreSpec(max_num_seqs=4))
    engine = engine_of(core, mixed_prefill=False)
    engine.start()
    expected = await in_company(engine, "a")
    digest = engine.describe()["core"]["digest"]
    core.rename(tmp_path / "old.core")
    write_core(core, CoreSpec(max_num_seqs=4, seed=1))
    assert (await engine.switch(True))["graphs"]["family"] == "mixed"
    assert await in_company(engine, "b") == expected
    shutil.rmtree(core)
    shutil.rmtree(tmp_path / "old.core")
    assert (await engine.switch(False))["graphs"]["family"] == "separate"
    assert await in_company(engine, "c") == expected
    assert engine.describe()["core"]["digest"] == digest
    await engine.close()
