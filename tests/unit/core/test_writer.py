"""Writing cores: complete or not there at all, and round trips through JSON."""

import mmap
import resource
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from engine.core import safetensors
from engine.core.codec import decode_manifest, decode_programs, encode_manifest, encode_programs
from engine.core.errors import CapacityGapError, DuplicateIdError
from engine.core.reader import open_core
from engine.core.writer import CoreWriter
from engine.errors import SettingsError
from tests.support.cores import CoreSpec, catalog, identity, manifest, weights, write_core

SPEC = CoreSpec(layers=1)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def digest(core: Path) -> str:
    with open_core(core) as opened:
        opened.verify_storage()
        return opened.digest


def test_the_same_content_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = write_core(tmp_path / "a", SPEC), write_core(tmp_path / "b", SPEC)
    for path in first.rglob("*"):
        if path.is_file():
            assert path.read_bytes() == (second / path.relative_to(first)).read_bytes()
    assert names(tmp_path) == ["a", "b"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_an_interrupted_export_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    output = tmp_path / "a.core"
    with pytest.raises(error), CoreWriter(output) as writer:
        writer.add_tensor(0, "x", "x", "plain", np.zeros(100, np.float32))
        writer.add_text("tokenizer.json", b"{}")
        assert names(tmp_path) != []
        raise error
    assert names(tmp_path) == []


def test_leaving_without_finish_leaves_nothing(tmp_path: Path) -> None:
    with CoreWriter(tmp_path / "a.core") as writer:
        writer.add_text("tokenizer.json", b"{}")
    assert names(tmp_path) == []


def test_an_invalid_catalog_never_becomes_a_core(tmp_path: Path) -> None:
    stored = weights(SPEC)
    parts = catalog(SPEC, stored)
    with pytest.raises(CapacityGapError), CoreWriter(tmp_path / "a.core") as writer:
        for name, weight in stored.items():
            layout = SPEC.layout if weight.n else "plain"
            writer.add_tensor(0, name, name, layout, weight.array, weight.n, weight.k)
        limits = CoreSpec(max_num_seqs=1000).limits()
        writer.finish(
            identity(), SPEC.model(), limits, True, parts.graphs, parts.kernels, parts.tuning,
            parts.programs,
        )  # fmt: skip
    assert names(tmp_path) == []


def test_an_existing_core_is_kept_without_overwrite(tmp_path: Path) -> None:
    output = write_core(tmp_path / "a.core", SPEC)
    before = digest(output)
    with pytest.raises(SettingsError, match="exists") as caught:
        write_core(output, CoreSpec(layers=1, seed=1))
    assert "--overwrite" in str(caught.value.hint)
    assert digest(output) == before


def test_overwriting_swaps_and_mapped_files_stay_valid(tmp_path: Path) -> None:
    output = write_core(tmp_path / "a.core", SPEC)
    with open_core(output) as opened:
        old = opened.tensor("norm")
        expected = old.copy()
        write_core(output, CoreSpec(layers=1, seed=1), overwrite=True)
        np.testing.assert_array_equal(old, expected)
    with open_core(output) as opened:
        assert not np.array_equal(opened.tensor("norm"), expected)
    assert names(tmp_path) == ["a.core"]


def test_a_failed_overwrite_keeps_the_former_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = write_core(tmp_path / "a.core", SPEC)
    before = digest(output)
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if Path(target) == output and ".partial-" in self.name:
            raise OSError(28, "No space left on device")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(SettingsError, match="No space left"):
        write_core(output, CoreSpec(layers=1, seed=1), overwrite=True)
    monkeypatch.undo()
    assert digest(output) == before
    assert names(tmp_path) == ["a.core"]


def test_what_is_no_core_is_never_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "precious"
    folder.mkdir()
    (folder / "thesis.txt").write_text("x")
    file = tmp_path / "file"
    file.write_text("x")
    (tmp_path / "link").symlink_to(folder)
    for output in (folder, file, tmp_path / "link"):
        with pytest.raises(SettingsError, match="is not a core"):
            write_core(output, SPEC, overwrite=True)
    assert (folder / "thesis.txt").read_text() == "x"
    assert names(tmp_path) == ["file", "link", "precious"]


def test_an_output_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(SettingsError, match="cannot write"):
        write_core(tmp_path / "file" / "a.core", SPEC)


def test_a_disk_that_is_full_half_way_is_told_and_nothing_is_left(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (safetensors.RESERVED + 4096, limits[1]))
    try:
        with pytest.raises(SettingsError, match=r"cannot write .*a\.core: File too large"):
            write_core(tmp_path / "a.core", SPEC)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert names(tmp_path) == []


def test_missing_folders_are_made(tmp_path: Path) -> None:
    digest(write_core(tmp_path / "x" / "y" / "a.core", SPEC))


def test_names_are_checked(tmp_path: Path) -> None:
    with CoreWriter(tmp_path / "a.core") as writer:
        writer.add_tensor(0, "x", "x", "plain", np.zeros(4, np.float32))
        with pytest.raises(DuplicateIdError):
            writer.add_tensor(0, "x", "x", "plain", np.zeros(4, np.float32))
        with pytest.raises(ValueError, match="float64"):
            writer.add_tensor(0, "y", "y", "plain", np.zeros(4))
        writer.add_text("a", b"")
        with pytest.raises(DuplicateIdError):
            writer.add_text("a", b"")
        for name in ("../a", "a/b", ".a", "", "a\n"):
            with pytest.raises(ValueError, match="text file name"):
                writer.add_text(name, b"")


def test_a_header_above_its_reserve_moves_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safetensors, "RESERVED", 64)
    output = write_core(tmp_path / "a.core", SPEC)
    with open_core(output) as opened:
        opened.verify_storage()
        for name, weight in weights(SPEC).items():
            np.testing.assert_array_equal(opened.tensor(name), weight.array)
    assert load_file(output / "storage" / "rank0.safetensors").keys() >= weights(SPEC).keys()


@pytest.mark.parametrize("by", [1, 128, 5000])
@pytest.mark.parametrize("piece", [1, 300, 10_000])
def test_moving_data_up(tmp_path: Path, by: int, piece: int) -> None:
    data = np.random.default_rng(0).bytes(4000)
    path = tmp_path / "x"
    path.write_bytes(data)
    safetensors.move_up(path, 100, by, piece)
    moved = path.read_bytes()
    assert moved[:100] == data[:100]
    assert moved[100 + by :] == data[100:]


def test_manifests_survive_json() -> None:
    spec = CoreSpec(verify=(2,))
    before = manifest(spec)
    programs = decode_programs(encode_programs(before.catalog.programs))
    assert programs == before.catalog.programs
    after = decode_manifest(encode_manifest(before), programs)
    assert after.root_digest != before.root_digest
    assert after.catalog == before.catalog
    for name in ("identity", "model", "limits", "default_mixed", "format_version"):
        assert getattr(after, name) == getattr(before, name)
    assert set(after.sections) == set(before.sections)


def test_an_open_mapping_is_not_needed_to_replace(tmp_path: Path) -> None:
    """The old files are unlinked, not truncated: a mapping keeps its bytes."""
    output = write_core(tmp_path / "a.core", SPEC)
    with (output / "core.json").open("rb") as file:
        view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    before = bytes(view)
    inode = (output / "core.json").stat().st_ino
    write_core(output, CoreSpec(layers=1, seed=1), overwrite=True)
    assert bytes(view) == before
    assert (output / "core.json").stat().st_ino != inode
