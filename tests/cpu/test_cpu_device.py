"""The CPU device: what it takes of a core's programs, and what it refuses by name."""

import numpy as np
import pytest
from msgspec.structs import replace

from engine.core.schema import KVLayout
from engine.device.base import SampleBatch, capacity_of
from engine.device.cpu.device import CpuDevice, choose_isa
from engine.device.cpu.weights import as_bytes
from engine.errors import DeviceError
from engine.ir.program import Domain, Program
from engine.kernels.cpu import CPU_KERNELS, cpu_kernels, linear_kernel
from engine.types import SamplingParams
from tests.support.batches import BatchRunner, Part
from tests.support.cores import CoreSpec, catalog, weights
from tests.support.native import ISAS

SPEC = CoreSpec(layout="q4p16", prefill=(8, 128), max_step_tokens=128)
STORED = weights(SPEC)
PARTS = catalog(SPEC, STORED)


def device(isa: str = "auto", threads: int = 1, **changes: object) -> CpuDevice:
    settings: dict[str, object] = {
        "workspace_bytes": max(graph.workspace_bytes for graph in PARTS.graphs),
        "num_blocks": 8,
        "max_blocks": 4,
        "sampler_slots": 4,
        "threads": threads,
        "isa": isa,
    }
    arrays = {name: weight.array for name, weight in STORED.items()}
    return CpuDevice(
        SPEC.model(),
        capacity_of(PARTS.graphs),
        arrays,
        **(settings | changes),  # type: ignore[arg-type]
    )


def program(graph_id: str = "prefill-8") -> Program:
    graph = next(graph for graph in PARTS.graphs if graph.id == graph_id)
    return PARTS.programs[graph.program]


def prompt(count: int, seed: int = 0) -> tuple[int, ...]:
    random = np.random.default_rng(seed)
    return tuple(random.integers(0, SPEC.vocab_size, count).tolist())


def test_auto_takes_the_best_path() -> None:
    assert choose_isa("auto") == ISAS[-1]
    assert choose_isa("portable") == "portable"
    assert device().isa == ISAS[-1]


def test_whole_programs_have_the_same_bits_on_every_path_and_thread_count() -> None:
    parts = [Part(prompt(70), 0, (3, 1)), Part(prompt(20, 1), 0, (5,))]
    follow = [Part((7,), 70, (3, 1), True), Part(prompt(12, 2), 20, (5,))]
    outputs = []
    for isa, threads in [*((isa, 1) for isa in ISAS), (ISAS[-1], 2), (ISAS[-1], 3)]:
        runner = BatchRunner(device(isa, threads), PARTS)
        first = runner.run("prefill-128", parts)
        outputs.append(np.concatenate([first, runner.run("mixed-32", follow)]))
    for other in outputs[1:]:
        np.testing.assert_array_equal(other, outputs[0])


def test_rows_do_not_depend_on_their_graph_or_their_mates() -> None:
    tokens = prompt(40)
    whole = BatchRunner(device(), PARTS)
    expected = whole.run("prefill-128", [Part(tokens, 0, (2,))])
    chunked = BatchRunner(device(), PARTS)
    mate = Part(prompt(25, 4), 0, (6,))
    rows = [chunked.run("prefill-128", [mate, Part(tokens[:3], 0, (2,))])[25:]]
    rows.append(chunked.run("prefill-8", [Part(tokens[3:11], 3, (2,))]))
    decode = Part((9,), 25, (6,), True)
    rows.append(chunked.run("mixed-32", [decode, Part(tokens[11:], 11, (2,))])[1:])
    np.testing.assert_array_equal(np.concatenate(rows), expected)


def test_rows_that_a_graph_has_beyond_those_present_write_nowhere() -> None:
    """Three rows on a graph of four, the last block of the cache full of another's keys."""
    blocks = (1, 3, 5)
    prompts = [Part(prompt(30, seed), 0, (block,)) for seed, block in enumerate((*blocks, 7))]
    steps = [Part((9 + i,), 30, (block,), True) for i, block in enumerate(blocks)]
    target = device()
    runner = BatchRunner(target, PARTS)
    runner.run("prefill-128", prompts)
    cache = target._context.kv_cache.reshape(SPEC.layers, 8, -1)
    before = cache.copy()
    runner.spoil_inputs()
    together = runner.run("decode-4", steps)
    changed = (cache != before).any(axis=(0, 2))
    assert np.flatnonzero(changed).tolist() == list(blocks)
    exact = BatchRunner(device(), PARTS)
    exact.run("prefill-128", prompts)
    alone = [exact.run("decode-1", [step]) for step in steps]
    np.testing.assert_array_equal(together, np.concatenate(alone))


def test_scrub_zeroes_blocks_in_all_layers() -> None:
    target = device()
    runner = BatchRunner(target, PARTS)
    runner.run("prefill-128", [Part(prompt(100), 0, (3, 1))])
    kv = SPEC.model().kv
    cache = target._context.kv_cache.reshape(kv.layers, 8, kv.block_bytes)
    assert cache[:, [1, 3]].any(axis=2).all()
    target.scrub([3])
    assert not cache[:, 3].any()
    assert cache[:, 1].any(axis=1).all()


def test_an_unknown_kernel_is_refused_by_name() -> None:
    graph = next(graph for graph in PARTS.graphs if graph.id == "prefill-8")
    first = replace(program().launches[0], kernel="cuda.embed")
    strange = replace(program(), launches=(first, *program().launches[1:]))
    with pytest.raises(DeviceError, match=r"kernel 'cuda.embed' is not one of this CPU device's"):
        device().instantiate(graph, strange)


def test_a_kernel_of_another_class_is_refused() -> None:
    graph = next(graph for graph in PARTS.graphs if graph.id == "prefill-8")
    launches = [
        replace(launch, kernel="cpu.linear.q4p16.int8_g32") if launch.op == "linear" else launch
        for launch in program().launches
    ]
    with pytest.raises(DeviceError, match=r"cpu.linear.q4p16.int8_g32 has (prompt_class|layout)"):
        device().instantiate(graph, replace(program(), launches=tuple(launches)))


def test_missing_weights_are_named() -> None:
    graph = next(graph for graph in PARTS.graphs if graph.id == "prefill-8")
    arrays = {name: weight.array for name, weight in STORED.items() if name != "rope"}
    bare = CpuDevice(
        SPEC.model(),
        capacity_of(PARTS.graphs),
        arrays,
        workspace_bytes=graph.workspace_bytes,
        num_blocks=2,
        max_blocks=2,
        sampler_slots=1,
        threads=1,
    )
    with pytest.raises(DeviceError, match="graph prefill-8: no storage tensor for rope"):
        bare.instantiate(graph, program())


def test_a_program_that_does_not_fit_is_refused_with_its_graph() -> None:
    graph = next(graph for graph in PARTS.graphs if graph.id == "prefill-128")
    with pytest.raises(DeviceError, match=r"graph prefill-128: launch \d+"):
        device(workspace_bytes=4096).instantiate(graph, program("prefill-128"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"isa": "sse9"}, "sse9"), ({"threads": 0}, "threads"), ({"num_blocks": 0}, "num_blocks")],
)
def test_bad_settings_are_device_errors(changes: dict[str, object], message: str) -> None:
    with pytest.raises(DeviceError, match=message):
        device(**changes)  # type: ignore[arg-type]


def test_a_pool_larger_than_memory_is_a_device_error() -> None:
    huge = replace(SPEC.model(), kv=KVLayout(layers=4096, kv_heads=4096, head_dim=64))
    with pytest.raises(DeviceError, match="no memory for") as caught:
        CpuDevice(
            huge,
            Domain(1, 1, 1),
            {},
            workspace_bytes=4096,
            num_blocks=1 << 22,
            max_blocks=1,
            sampler_slots=1,
            threads=1,
        )
    assert caught.value.hint is not None


def test_weights_are_copied_only_where_they_must() -> None:
    raw = np.zeros(256, np.uint8)
    start = -raw.ctypes.data % 64
    assert np.shares_memory(as_bytes("w", raw[start : start + 64]), raw)
    moved = as_bytes("w", raw[start + 1 : start + 65])
    assert not np.shares_memory(moved, raw)
    assert moved.ctypes.data % 64 == 0
    with pytest.raises(DeviceError, match="'w' is not contiguous"):
        as_bytes("w", np.zeros((4, 4), np.float32).T[:2])


def test_the_sampler_reads_the_last_replay() -> None:
    target = device()
    runner = BatchRunner(target, PARTS)
    logits = runner.run("prefill-8", [Part(prompt(8), 0, (1,))])
    target.sampler.set(2, SamplingParams(4, temperature=0), (), (1,), ())
    rows, ones = np.array([7, 0], np.int32), np.zeros(2, np.int32)
    batch = SampleBatch(rows, ones + 2, ones + 8, ones.astype(np.uint8), ones + 3)
    samples = target.sampler.sample(batch)
    best = logits[rows, : SPEC.vocab_size].argmax(axis=1)
    np.testing.assert_array_equal(samples.tokens, best)
    np.testing.assert_array_equal(samples.top_ids[:, 0], best)
    assert (samples.top_ids[:, 3:] == -1).all()
    scored = target.sampler.score(rows, samples.tokens, ones)
    np.testing.assert_array_equal(scored.logprobs, samples.logprobs)


def test_the_kernel_table_describes_itself() -> None:
    every = cpu_kernels(CPU_KERNELS)
    assert [kernel.id for kernel in every] == list(CPU_KERNELS)
    assert {kernel.device for kernel in every} == {"cpu"}
    for name in ("int12_g32", "bf16_g32", "int8_g32"):
        assert linear_kernel("q4p16", "bf16_t32", name) == f"cpu.linear.q4p16.{name}.bf16_t32"
    assert linear_kernel("q8p16", "bf16_g32", "bf16_g32") == "cpu.linear.q8p16.bf16_g32"
    with pytest.raises(DeviceError, match="no linear kernel for layout 'bf16p16'"):
        linear_kernel("bf16p16", "int8_g32", "int8_g32")
    with pytest.raises(DeviceError, match=r"'cpu\.magic'"):
        cpu_kernels(["cpu.rms_norm", "cpu.magic"])
