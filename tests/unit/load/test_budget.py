"""The memory budget: pool sizes, the clamped context, and what does not fit."""

from pathlib import Path

import pytest

from engine.core.schema import KVLayout
from engine.errors import DeviceError
from engine.load.budget import SHARE, plan_budget, size_text
from engine.load.memory import available_bytes
from engine.load.select import LoadLimits

KV = KVLayout(layers=2, kv_heads=2, head_dim=32)
BLOCK = 2 * 2 * 2 * 32 * 64 * 2
LIMITS = LoadLimits(4, 256, 32)


def test_a_block_is_all_layers_keys_and_values() -> None:
    assert KV.bytes_per_block == BLOCK


def test_the_pool_is_no_larger_than_the_limits_can_use() -> None:
    budget = plan_budget(KV, LIMITS, 1000, 2000, 1 << 30)
    assert budget.num_blocks == 4
    assert budget.kv_bytes == 4 * BLOCK
    assert (budget.max_model_len, budget.message) == (256, None)


def test_the_pool_has_room_for_a_quarter_of_what_all_sequences_could_take() -> None:
    many = LoadLimits(64, 256, 64)
    assert plan_budget(KV, many, 0, 0, 1 << 30).num_blocks == 64 * 4 // 4


def test_the_pool_takes_a_share_of_what_is_left() -> None:
    available = 3000 + int(10 * BLOCK / SHARE) + 1
    budget = plan_budget(KV, LoadLimits(64, 256, 64), 1000, 2000, available)
    assert budget.num_blocks == 10


def test_a_given_size_is_taken_whole() -> None:
    assert plan_budget(KV, LIMITS, 0, 0, 1 << 30, 100 * BLOCK).num_blocks == 100
    assert plan_budget(KV, LIMITS, 0, 0, 1 << 30, 8 * BLOCK + BLOCK - 1).num_blocks == 8


def test_a_small_pool_shortens_the_context() -> None:
    budget = plan_budget(KV, LIMITS, 0, 0, 1 << 30, 3 * BLOCK)
    assert budget.max_model_len == 192
    assert budget.message is not None
    assert "from 256 to 192 tokens: the KV pool has 3 blocks" in budget.message


@pytest.mark.parametrize(
    ("available", "given"), [(0, None), (BLOCK, None), (1 << 30, BLOCK - 1), (1 << 30, 0)]
)
def test_not_even_one_sequence_fits(available: int, given: int | None) -> None:
    with pytest.raises(DeviceError, match="not even one sequence of 64 tokens fits") as caught:
        plan_budget(KV, LIMITS, 0, 0, available, given)
    assert caught.value.exit_code == 5
    assert size_text(BLOCK) in str(caught.value)


def test_weights_beyond_the_memory() -> None:
    with pytest.raises(DeviceError, match=r"needs 32\.0 KiB, 0 bytes is there"):
        plan_budget(KV, LIMITS, 1 << 30, 0, 1 << 20)


def test_a_given_size_beyond_the_memory_names_need_and_have() -> None:
    with pytest.raises(DeviceError, match=r"2\.0 GiB was asked for, 1\.0 GiB is there") as caught:
        plan_budget(KV, LIMITS, 0, 0, 1 << 30, 2 << 30)
    assert "FLARE_KV_CACHE_MEMORY" in str(caught.value.hint)


def system(tmp_path: Path, meminfo: str, cgroup: str, files: dict[str, str]) -> tuple[Path, Path]:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(meminfo)
    (proc / "self" / "cgroup").write_text(cgroup)
    for name, text in files.items():
        path = groups / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return proc, groups


MEMINFO = "MemTotal: 2000 kB\nMemFree: 10 kB\nMemAvailable: 1000 kB\n"


def test_the_machine_alone(tmp_path: Path) -> None:
    assert available_bytes(*system(tmp_path, MEMINFO, "", {})) == 1000 * 1024


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"a/b/memory.max": "max", "a/b/memory.current": "5"}, 1024000),
        ({"a/b/memory.max": "5000", "a/b/memory.current": "3000"}, 2000),
        (
            {
                "a/b/memory.max": "5000",
                "a/b/memory.current": "3000",
                "a/b/memory.stat": "anon 1\ninactive_file 500\n",
            },
            2500,
        ),
        ({"a/memory.max": "700", "a/memory.current": "100"}, 600),
        ({"memory.max": "700", "memory.current": "800"}, 0),
    ],
)
def test_control_groups_version_2(tmp_path: Path, files: dict[str, str], expected: int) -> None:
    assert available_bytes(*system(tmp_path, MEMINFO, "0::/a/b\n", files)) == expected


def test_control_groups_version_1(tmp_path: Path) -> None:
    files = {
        "memory/d/memory.limit_in_bytes": "9000",
        "memory/d/memory.usage_in_bytes": "4000",
        "memory/memory.limit_in_bytes": str(2**63 - 4096),
        "memory/memory.usage_in_bytes": "4000",
    }
    groups = "5:cpu,cpuacct:/d\n4:memory:/d\nnonsense\n"
    assert available_bytes(*system(tmp_path, MEMINFO, groups, files)) == 5000


def test_a_system_that_tells_nothing(tmp_path: Path) -> None:
    assert available_bytes(tmp_path / "none", tmp_path / "none") > 0
