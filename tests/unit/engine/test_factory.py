"""Loading: selection reaches the rank, only what is retained is instantiated, refusals."""

import asyncio
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from engine.config import EngineConfig
from engine.core.codec import decode_manifest
from engine.core.schema import Kind
from engine.errors import CoreError, DeviceError, SelectionError, SettingsError
from engine.factory import load_engine, plan_load
from engine.load.plan import parse_rank_plan
from engine.ranks.devices import open_device
from tests.support.cores import CoreSpec, identity, manifest, write_core
from tests.support.loading import load
from tests.support.serving import collect, ids, request

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_core(tmp_path_factory.mktemp("cores") / "both.core")


@pytest.fixture(scope="module")
def separate_core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = CoreSpec(mixed=(), default_mixed=False)
    return write_core(tmp_path_factory.mktemp("cores") / "separate.core", spec)


@pytest.mark.parametrize(
    ("requested", "family"), [(None, "mixed"), (True, "mixed"), (False, "separate")]
)
def test_the_selection_reaches_rank_device_and_description(
    core: Path, requested: bool | None, family: str
) -> None:
    engine, device = load(core, mixed_prefill=requested)
    plan = device.spec.plan
    assert (plan.requested, plan.family) == (requested, family)
    assert parse_rank_plan(plan.to_json()) == plan
    assert device.instantiated == list(plan.retained)
    assert any(name.startswith("mixed") for name in plan.retained) is (family == "mixed")
    described = engine.describe()
    graphs = described["graphs"]
    assert (graphs["requested"], graphs["family"]) == (requested, family)
    assert sum(graphs["retained"].values()) == len(plan.retained)
    for kind, captured in graphs["captured"].items():
        assert captured == graphs["retained"][kind] + graphs["pruned"][kind]
    [rank] = described["ranks"]
    assert rank == {
        "rank": 0,
        "device": "cpu",
        "family": family,
        "catalog_digest": engine.model.core_digest,
        "retained": len(plan.retained),
    }


def test_the_description_has_the_keys_of_the_contract(core: Path) -> None:
    described = load(core)[0].describe()
    assert list(described) == [
        "object",
        "model",
        "core",
        "graphs",
        "ranks",
        "scheduler",
        "speculative",
        "prefix_cache",
    ]
    assert list(described["graphs"]) == [
        "requested",
        "family",
        "captured",
        "retained",
        "pruned",
        "ineligible",
        "kernels",
        "storage_bytes",
        "workspace_bytes",
        "epoch",
    ]
    assert described["graphs"]["epoch"] == 0
    assert described["speculative"] == {"method": "off", "draft_tokens": 0}
    assert described["prefix_cache"] == {"enabled": True}
    assert described["core"]["device"] == "cpu"


@pytest.mark.parametrize("live_switch", [True, False])
def test_a_device_has_room_for_the_other_family_only_with_a_live_switch(live_switch: bool) -> None:
    base = manifest()
    grown = tuple(
        replace(graph, workspace_bytes=10**6, domain=replace(graph.domain, seqs=9))
        if graph.kind is Kind.MIXED
        else graph
        for graph in base.catalog.graphs
    )
    core = replace(base, catalog=replace(base.catalog, graphs=grown))
    config = EngineConfig(core=Path("x"), mixed_prefill=False, live_switch=live_switch)
    plan = plan_load(config, core)
    assert not any(graph.kind is Kind.MIXED for graph in plan.pruned.graphs)
    small = max(graph.workspace_bytes for graph in plan.pruned.graphs)
    assert plan.room.workspace_bytes == (10**6 if live_switch else small)
    assert plan.room.capacity.seqs == (9 if live_switch else 4)
    both = plan_load(replace(config, mixed_prefill=True), core)
    assert both.room.workspace_bytes == 10**6
    alone = replace(base, catalog=replace(base.catalog, graphs=plan.pruned.graphs))
    assert plan_load(config, alone).room.workspace_bytes == small


def test_limits_of_the_run_reach_the_rank(core: Path) -> None:
    engine, device = load(
        core, max_num_seqs=3, max_model_len=100, max_step_tokens=20, prefix_cache=False
    )
    plan = device.spec.plan
    assert (plan.max_num_seqs, plan.max_model_len, plan.max_step_tokens) == (3, 100, 20)
    assert device.inputs.block_tables.shape[1] == 2
    assert engine.model.context_length == 100
    described = engine.describe()
    assert described["scheduler"] == {
        "max_num_seqs": 3,
        "max_model_len": 100,
        "max_step_tokens": 20,
        "kv_blocks": plan.num_blocks,
        "block_size": 64,
    }
    assert described["prefix_cache"] == {"enabled": False}
    assert [g["id"] for g in described["graphs"]["ineligible"]] == ["mixed-32"]


@pytest.mark.parametrize(
    ("settings", "error", "code", "text"),
    [
        ({"max_num_seqs": 5}, SettingsError, 2, "max_num_seqs 5 .*4"),
        ({"max_num_seqs": 0}, SettingsError, 2, "max_num_seqs must"),
        ({"max_model_len": 257}, SettingsError, 2, "max_model_len 257 .*256"),
        ({"max_step_tokens": 33}, SettingsError, 2, "max_step_tokens 33 .*32"),
        ({"speculative": "mtp"}, SettingsError, 2, "speculative mtp"),
        ({"speculative": "ngram", "draft_tokens": 4}, SelectionError, 4, "4 draft tokens need"),
        ({"draft_tokens": 2}, SettingsError, 2, "draft_tokens 2"),
        ({"tensor_parallel_size": 2}, SettingsError, 2, "tensor_parallel_size 2"),
        ({"threads": 0}, SettingsError, 2, "threads"),
        ({"device": "cuda"}, SelectionError, 4, "captured for cpu, this run uses cuda"),
        ({"kv_cache_bytes": 100}, DeviceError, 5, "not even one sequence"),
        ({"mixed_prefill": True, "max_step_tokens": 4}, SelectionError, 4, "mixed-8: takes 8"),
    ],
)
def test_what_cannot_run_is_refused_before_any_device(
    core: Path, settings: dict[str, object], error: type[Exception], code: int, text: str
) -> None:
    def no_device(spec: object) -> object:
        raise AssertionError("a device was opened")

    with pytest.raises(error, match=text) as caught:
        load_engine(EngineConfig(core=core, **settings), no_device)
    assert caught.value.exit_code == code


def test_mixed_cannot_be_had_from_a_core_without_it(separate_core: Path) -> None:
    with pytest.raises(SelectionError, match="exported without mixed graphs"):
        load(separate_core, mixed_prefill=True)
    engine, _ = load(separate_core)
    assert engine.describe()["graphs"]["family"] == "separate"


def test_a_core_for_several_ranks_is_refused_by_name() -> None:
    base = manifest()
    ranks = replace(base, identity=identity(tensor_parallel_size=2))
    with pytest.raises(SettingsError, match="tensor_parallel_size 2 is not supported"):
        plan_load(EngineConfig(core=Path("x")), ranks)


def test_a_cuda_core_without_cuda_is_a_device_error(core: Path) -> None:
    _, device = load(core)
    spec = replace(device.spec, plan=replace(device.spec.plan, device="cuda"))
    with pytest.raises(DeviceError, match="targets cuda") as caught:
        open_device(spec, None, "auto")
    assert caught.value.exit_code == 5


def test_a_damaged_core_is_refused(tmp_path: Path) -> None:
    core = write_core(tmp_path / "damaged.core")
    storage = core / "storage" / "rank0.safetensors"
    data = bytearray(storage.read_bytes())
    data[-1] ^= 1
    storage.chmod(0o644)
    storage.write_bytes(bytes(data))
    with pytest.raises(CoreError, match="digest") as caught:
        load(core)
    assert caught.value.exit_code == 3
    with pytest.raises(CoreError):
        load(tmp_path / "absent.core")


def test_a_small_cache_lowers_the_context_and_keeps_the_null_block_apart(core: Path) -> None:
    block = decode_manifest((core / "core.json").read_bytes()).model.kv.bytes_per_block
    engine, device = load(core, kv_cache_bytes=3 * block)
    assert engine.model.context_length == 192
    assert device.spec.plan.num_blocks == 3
    assert device.spec.num_blocks == 4


def test_load_phases_are_measured(core: Path) -> None:
    registry = load(core)[0].metrics.registry
    for phase in ("open", "validate", "plan", "device", "instantiate", "verify", "warm", "total"):
        value = registry.get_sample_value("flare_load_phase_seconds", {"phase": phase})
        assert value is not None and value > 0, phase


async def test_both_families_give_the_same_texts(core: Path) -> None:
    texts = []
    for mixed in (True, False):
        engine, _ = load(core, mixed_prefill=mixed)
        engine.start()
        prompts = [[(5 * i + j) % 80 + 3 for j in range(2 + 17 * i)] for i in range(6)]
        streams = engine.submit(
            [request(str(i), p, 12, ignore_eos=True) for i, p in enumerate(prompts)]
        )
        answers = await asyncio.gather(*map(collect, streams))
        texts.append([ids(deltas) for deltas in answers])
        assert all(len(text) == 12 for text in texts[-1])
        used = {
            sample.labels["graph"]
            for metric in engine.metrics.registry.collect()
            for sample in metric.samples
            if sample.name == "flare_graph_launches_total" and sample.value
        }
        assert any(name.startswith("mixed") for name in used) is mixed
        await engine.close()
    assert texts[0] == texts[1]
