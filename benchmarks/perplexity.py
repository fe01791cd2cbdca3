"""Perplexity of a core on English text, next to transformers with the dequantised weights.

python -m benchmarks.perplexity CORE GGUF [--tokens 51200] [--window 1024]

The text is the language reference that every Python carries (pydoc_data.topics), cut into windows
that do not overlap; every token but a window's first is predicted. Rows are computed in the prompt
role, and once more in the generated role (teacher-forced, all but the first 16 tokens).
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, GgufConfig

from engine.core.reader import Core, open_core
from engine.device.base import capacity_of
from engine.device.cpu.device import CpuDevice
from engine.text.assets import folder_files
from engine.text.tokenizer import Tokenizer
from tests.support.direct import DirectRunner
from tests.support.english import english

Model = Callable[[list[int]], NDArray[np.float32]]
GENERATED_FROM = 16


def native(core: Core, window: int, threads: int) -> DirectRunner:
    """The core's largest prefill graph on the CPU device."""
    catalog = core.manifest.catalog
    blocks = -(-window // core.manifest.model.kv.block_size)
    device = CpuDevice(
        core.manifest.model,
        capacity_of(catalog.graphs),
        {tensor.name: core.tensor(tensor.name) for tensor in catalog.storage},
        workspace_bytes=max(graph.workspace_bytes for graph in catalog.graphs),
        num_blocks=blocks,
        max_blocks=blocks,
        sampler_slots=1,
        threads=threads,
    )
    return DirectRunner(core, device)


def reference(gguf: Path, dtype: torch.dtype) -> Model:
    """Transformers on the same file."""
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    ).to(dtype)

    def logits(ids: list[int]) -> NDArray[np.float32]:
        with torch.inference_mode():
            return np.asarray(model(torch.tensor([ids])).logits[0].float().numpy())

    return logits


def windows(ids: list[int], tokens: int, size: int) -> Iterator[list[int]]:
    """Windows that do not overlap, ``tokens`` in all."""
    for start in range(0, min(tokens, len(ids)) - size + 1, size):
        yield ids[start : start + size]


def surprise(logits: NDArray[np.float32], targets: list[int]) -> float:
    """Sum of the negative log likelihoods of ``targets``, in nats."""
    top = logits.max(axis=1, keepdims=True)
    log_sums = np.log(np.exp(logits - top).sum(axis=1, dtype=np.float64))
    return float((log_sums + top[:, 0] - logits[np.arange(len(targets)), targets]).sum())


def perplexity(
    model: Model, text: list[list[int]], skip: int = GENERATED_FROM - 1
) -> dict[str, float]:
    """exp of the mean negative log likelihood of each token after the first ``skip`` + 1."""
    total, count, began = 0.0, 0, time.perf_counter()
    for ids in text:
        total += surprise(model(ids)[skip:-1], ids[skip + 1 :])
        count += len(ids) - skip - 1
    seconds = time.perf_counter() - began
    return {"perplexity": round(float(np.exp(total / count)), 4), "seconds": round(seconds, 1)}


def main() -> None:
    """Measure all; print a JSON line each."""
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("core", type=Path)
    ap.add_argument("gguf", type=Path)
    ap.add_argument("--tokens", type=int, default=51200)
    ap.add_argument("--window", type=int, default=1024)
    ap.add_argument("--threads", type=int, default=2)
    a = ap.parse_args()
    torch.set_num_threads(a.threads)
    ids = list(Tokenizer.load(folder_files(a.core / "text")).encode(english()))
    text = list(windows(ids, a.tokens, a.window))
    runner = native(open_core(a.core), a.window, a.threads)
    models: dict[str, Model] = {
        "flare, prompt role": runner.logits,
        "flare, generated role": lambda x: runner.logits(x, GENERATED_FROM),
        "transformers float32": reference(a.gguf, torch.float32),
        "transformers bfloat16": reference(a.gguf, torch.bfloat16),
    }
    print(json.dumps({"tokens": len(text) * a.window, "window": a.window}))
    for name, model in models.items():
        print(json.dumps({name: perplexity(model, text)}), flush=True)


if __name__ == "__main__":
    main()
