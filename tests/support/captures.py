"""Captured graphs of a tiny quantised model, for tests of what comes after the capture."""

from pathlib import Path

import gguf

from engine.core.schema import Limits
from engine.export.catalog import Capture, capture_graphs
from engine.export.checkpoint.base import SourceText
from engine.export.checkpoint.gguf_llama import open_gguf
from engine.export.graphs import plan_graphs
from engine.export.spec import model_spec
from engine.export.weights import plan_weights
from tests.support.checkpoints import save_gguf, tiny_model

Q4_1 = gguf.GGMLQuantizationType.Q4_1
Q8_0 = gguf.GGMLQuantizationType.Q8_0
LIMITS = Limits(24, 128, 200)
TEXT = SourceText({}, (2,), 96)


def capture(folder: Path, mixed: bool = True) -> Capture:
    """Capture a two-layer model for ``LIMITS``; linears are Q4_1, the tied embedding Q8_0."""
    types = {"token_embd.weight": Q8_0, **dict.fromkeys(
        (f"{name}.weight" for name in ("attn_q", "attn_k", "attn_v", "attn_output",
                                       "ffn_gate", "ffn_up", "ffn_down")), Q4_1)}  # fmt: skip
    model = tiny_model(tie_word_embeddings=True)
    checkpoint = open_gguf(save_gguf(model, folder / "m.gguf", types))
    plan = plan_weights(checkpoint, "keep", LIMITS.max_model_len)
    spec = model_spec(checkpoint.model, TEXT, plan.label)
    return capture_graphs(spec, plan.shapes, plan_graphs(LIMITS, mixed), lambda: None)
