"""Next-token distributions of a core's CPU kernels against transformers, in both roles.

python -m benchmarks.parity CORE GGUF [--prompts 200] [--length 48]

The figures of tests/cpu/test_parity.py, printed: mean KL divergence in nats and top-1 agreement.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks.perplexity import native, reference
from engine.core.reader import open_core
from engine.text.assets import folder_files
from engine.text.tokenizer import Tokenizer
from tests.support.direct import agreement
from tests.support.english import english, windows_of

BORDER = 8


def main() -> None:
    """Compare and print one JSON object."""
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("core", type=Path)
    ap.add_argument("gguf", type=Path)
    ap.add_argument("--prompts", type=int, default=200)
    ap.add_argument("--length", type=int, default=48)
    a = ap.parse_args()
    torch.set_num_threads(1)
    ids = list(Tokenizer.load(folder_files(a.core / "text")).encode(english()))
    prompts = windows_of(ids, a.prompts, a.length)
    model = reference(a.gguf, torch.float32)
    runner = native(open_core(a.core), a.length, 2)
    expected = {i: model(p) for i, p in enumerate(prompts)}
    prompt = agreement(expected, {i: runner.logits(p) for i, p in enumerate(prompts)})
    generated = agreement(
        {i: logits[BORDER:] for i, logits in expected.items()},
        {i: runner.logits(p, BORDER)[BORDER:] for i, p in enumerate(prompts)},
    )
    print(
        json.dumps({"prompt rows": asdict(prompt), "generated rows": asdict(generated)}, indent=1)
    )


if __name__ == "__main__":
    main()
