"""Open a checkpoint of any format that export reads."""

from pathlib import Path

from engine.errors import CheckpointError
from engine.export.checkpoint.base import Checkpoint
from engine.export.checkpoint.gguf_llama import open_gguf
from engine.export.checkpoint.hf_llama import open_hf


def open_checkpoint(path: Path, name: str | None = None) -> Checkpoint:
    """Open a GGUF file or a Hugging Face directory with safetensors.

    ``name`` is the model's name; None takes the file's or the folder's. Raises CheckpointError.
    """
    if path.is_dir():
        return open_hf(path, name)
    if path.is_file():
        return open_gguf(path, name)
    raise CheckpointError(
        f"{path}: no such file or directory",
        "MODEL is a GGUF file, a Hugging Face directory with safetensors, or smollm2.",
    )
