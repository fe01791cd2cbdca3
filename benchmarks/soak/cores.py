"""The cores that the soaks take by themselves: the default model, or a small random Llama."""

import contextlib
import io
import tempfile
from collections.abc import Iterator
from pathlib import Path

from engine.export.pipeline import export_core
from engine.export.settings import ExportConfig

LIMITS = {"max_num_seqs": 2, "max_step_tokens": 16, "max_model_len": 128}


@contextlib.contextmanager
def given_or_default(core: Path | None) -> Iterator[Path]:
    """Give ``core``, or the default model, exported for as long as it is needed."""
    if core is not None:
        yield core
        return
    with tempfile.TemporaryDirectory() as folder:
        yield export_core(ExportConfig("smollm2", Path(folder) / "default.core"))


def tiny_core(output: Path, **settings: object) -> Path:
    """Export a random Llama of one layer with a tokenizer to ``output`` and return the core."""
    from tests.support.checkpoints import complete_hf  # noqa: PLC0415 (torch: only to make one)

    chosen = {**LIMITS, "quantization": "int8", **settings}
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        complete_hf(Path(folder), num_hidden_layers=1, intermediate_size=64)
        return export_core(ExportConfig(folder, output, **chosen))  # type: ignore[arg-type]
