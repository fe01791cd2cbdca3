"""The weights of a GGUF file as a bf16 Hugging Face directory, for servers that read no GGUF.

python -m benchmarks.serving.dense FILE.gguf DIRECTORY
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig


def write_dense(gguf: Path, directory: Path) -> None:
    """Dequantise every tensor, round it to bf16 and save model, configuration and tokenizer."""
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    )
    torch.nn.Module.to(model, torch.bfloat16)  # in place
    model.config.dtype = torch.bfloat16
    partial = directory.with_name(directory.name + ".partial")
    model.save_pretrained(partial)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(partial)
    partial.rename(directory)


if __name__ == "__main__":
    write_dense(Path(sys.argv[1]), Path(sys.argv[2]))
