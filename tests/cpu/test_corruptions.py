"""Corrupted cores: the part of ``benchmarks.soak.corruptions`` that every run of the tests does."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.soak.cores import tiny_core
from benchmarks.soak.mutations import read_pristine
from engine.core.codec import decode_manifest
from engine.core.reader import open_core
from engine.errors import CoreError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_core(tmp_path_factory.mktemp("cores") / "tiny.core")


def test_every_byte_of_the_manifest_counts(core: Path) -> None:
    data = (core / "core.json").read_bytes()
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 1
        with pytest.raises(CoreError):
            decode_manifest(bytes(changed))


@pytest.mark.parametrize("path", ["programs.json", "text/tokenizer.json", "text/text.json"])
def test_bytes_of_other_files_count(core: Path, path: str) -> None:
    data = (core / path).read_bytes()
    step = max(1, len(data) // 200)
    try:
        for position in range(0, len(data), step):
            changed = bytearray(data)
            changed[position] ^= 1 << position % 8
            (core / path).write_bytes(changed)
            with pytest.raises(CoreError, match=f"{path}: digest: expected"):
                open_core(core)
    finally:
        (core / path).write_bytes(data)


def test_random_corruptions_are_refused_or_do_no_harm(core: Path) -> None:
    """In a process of its own, which forks one that has loaded nothing."""
    command = [sys.executable, "-m", "benchmarks.soak.corruptions", str(core)]
    command += ["--count", "400", "--seed", "11"]
    run = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "400 cases of seed 11" in run.stdout
    for kind in ("refused    sealed", "refused    not sealed", "identical  sealed"):
        assert kind in run.stdout


def test_the_original_of_all_cases_is_the_core(core: Path) -> None:
    pristine = read_pristine(core)
    assert {"core.json", "programs.json", "text/text.json"} <= pristine.files.keys()
    assert all((core / path).read_bytes() == data for path, data in pristine.files.items())
