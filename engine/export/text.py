"""The text files of a checkpoint, whatever its format."""

from engine.export.checkpoint.base import Checkpoint, SourceText
from engine.export.checkpoint.gguf_llama import GgufCheckpoint
from engine.export.checkpoint.hf_llama import HfCheckpoint
from engine.export.tokenizer import gguf_text_files, hf_text_files


def source_text(checkpoint: Checkpoint) -> SourceText:
    """Convert the tokenizer, template and defaults. Raises CheckpointError."""
    if isinstance(checkpoint, GgufCheckpoint):
        return gguf_text_files(checkpoint.metadata, source=str(checkpoint.file.path))
    if isinstance(checkpoint, HfCheckpoint):
        return hf_text_files(checkpoint.folder)
    raise TypeError(f"no tokenizer conversion for {type(checkpoint).__name__}")
