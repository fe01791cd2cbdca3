"""Tokenizers of checkpoints, converted to the text files of a core."""

from engine.export.tokenizer.from_gguf import gguf_text_files
from engine.export.tokenizer.from_hf import hf_text_files

__all__ = ["gguf_text_files", "hf_text_files"]
