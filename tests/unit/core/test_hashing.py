"""Hashing that begins before a core is opened."""

import json
from pathlib import Path

import pytest

from engine.core.errors import DigestMismatchError
from engine.core.hashing import EarlyHashing, hash_early
from engine.core.reader import open_core
from tests.support.cores import write_core


@pytest.fixture
def core(tmp_path: Path) -> Path:
    return write_core(tmp_path / "a.core")


def flip_last_byte(core: Path) -> None:
    path = core / "storage" / "rank0.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def early_of(path: Path) -> EarlyHashing:
    early = hash_early(path)
    assert early is not None
    early.hashing.result()
    return early


def test_a_core_goes_on_with_what_began_early(core: Path) -> None:
    early = early_of(core)
    early.raise_if_damaged(core)
    with open_core(core, early=early) as opened:
        assert opened._hashing is early.hashing
        opened.raise_if_damaged()
        opened.verify_storage()


def test_damage_is_told_at_once_by_way_of_any_path(core: Path, tmp_path: Path) -> None:
    flip_last_byte(core)
    (tmp_path / "link").symlink_to(core)
    for path in (core, tmp_path / "link", core / ".." / core.name):
        with pytest.raises(DigestMismatchError, match=r"storage/rank0\.safetensors: digest: exp"):
            early_of(core).raise_if_damaged(path)
    with open_core(core, early=early_of(core)) as opened, pytest.raises(DigestMismatchError):
        opened.raise_if_damaged()


def test_nothing_is_told_before_it_is_known(core: Path) -> None:
    flip_last_byte(core)
    with open_core(core, hash_storage=False) as opened:
        opened.raise_if_damaged()
        with pytest.raises(DigestMismatchError):
            opened.verify_storage()


def test_damage_of_another_core_is_dropped(core: Path, tmp_path: Path) -> None:
    other = write_core(tmp_path / "b.core")
    flip_last_byte(other)
    early = early_of(other)
    early.raise_if_damaged(core)
    with open_core(core, early=early) as opened:
        assert opened._hashing is not early.hashing
        opened.verify_storage()


def test_a_manifest_that_is_not_whole_is_left_to_the_reader(core: Path) -> None:
    manifest = core / "core.json"
    values = json.loads(manifest.read_text())
    stored = next(s for s in values["sections"] if s["path"].startswith("storage/"))
    stored["digest"] = "0" * 64
    manifest.write_text(json.dumps(values))
    early_of(core).raise_if_damaged(core)
    with pytest.raises(DigestMismatchError, match="root_digest"):
        open_core(core, early=early_of(core))


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"sections": [1]}', '{"sections": [{"path": "storage/x"}]}', "[" * 10**5],
    ids=range(6),
)
def test_what_is_no_core_is_nothing_to_hash(text: str, core: Path, tmp_path: Path) -> None:
    assert hash_early(tmp_path / "none") is None
    assert hash_early(Path("a" * 5000)) is None
    assert hash_early(Path("a\0b")) is None
    (core / "core.json").write_text(text)
    assert hash_early(core) is None


def test_a_short_or_linked_file_is_nothing_to_hash(core: Path) -> None:
    path = core / "storage" / "rank0.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    assert hash_early(core) is None
    path.rename(core / "elsewhere")
    path.symlink_to(core / "elsewhere")
    assert hash_early(core) is None
