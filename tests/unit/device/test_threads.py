"""The default number of compute threads."""

import os
from pathlib import Path

import pytest

from engine.device.cpu.threads import default_threads


@pytest.fixture
def cpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Eight logical processors on four cores, of which the process may use six."""
    for cpu in range(8):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{cpu % 4},{cpu % 4 + 4}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 4, 5, 6})
    return tmp_path


def test_physical_cores_of_the_affinity_mask(cpus: Path) -> None:
    assert default_threads(cpus, cpus / "absent") == 3


@pytest.mark.parametrize(
    ("quota", "threads"),
    [("200000 100000", 2), ("150000 100000", 2), ("50000 100000", 1), ("max 100000", 3)],
)
def test_a_control_group_quota_lowers_it(cpus: Path, quota: str, threads: int) -> None:
    file = cpus / "cpu.max"
    file.write_text(quota)
    assert default_threads(cpus, file) == threads


def test_unknown_topology_counts_logical_processors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 9})
    assert default_threads(tmp_path, tmp_path / "absent") == 2
