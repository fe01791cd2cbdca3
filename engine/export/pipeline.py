"""The export pipeline: a checkpoint in, a complete core out, or nothing."""

import time
from pathlib import Path

from msgspec.structs import asdict

from engine import __version__
from engine.core.schema import Identity, Limits
from engine.core.writer import CoreWriter
from engine.export.canaries import record_canaries
from engine.export.capture import PackedShape
from engine.export.catalog import capture_graphs
from engine.export.checkpoint.base import Checkpoint
from engine.export.checkpoint.open import open_checkpoint
from engine.export.graphs import plan_graphs
from engine.export.progress import ExportProgress, Silent
from engine.export.settings import ExportConfig, check_config, resolve_limits
from engine.export.source import resolve_model, source_digest
from engine.export.spec import model_spec
from engine.export.text import source_text
from engine.export.weights import Quantization, WeightPlan, plan_weights, stored_weight


def export_core(config: ExportConfig, progress: ExportProgress | None = None) -> Path:
    """Export a checkpoint to a core and return its path.

    The core appears under its name only when it is complete; an error or Ctrl-C leaves nothing.
    Raises SettingsError (before any work: a bad flag, an output that exists or cannot be written)
    and CheckpointError (the checkpoint cannot be read or is not supported).
    """
    shown = progress or Silent()
    check_config(config)
    source = resolve_model(config.model)
    with CoreWriter(config.output, config.overwrite) as writer:
        shown.step(f"Reading {source.path}", 1)
        checkpoint = open_checkpoint(source.path, source.name)
        return _export(config, checkpoint, writer, shown)


def _export(
    config: ExportConfig, checkpoint: Checkpoint, writer: CoreWriter, shown: ExportProgress
) -> Path:
    limits = resolve_limits(config, checkpoint.model.context_length)
    quantization = config.quantization or checkpoint.default_quantization
    plan = plan_weights(checkpoint, quantization, limits.max_model_len, config.activations)
    text = source_text(checkpoint)
    model = model_spec(checkpoint.model, text, plan.label)
    shown.advance()
    for note in (*checkpoint.notes, *plan.notes):
        shown.note(note)
    shapes = plan_graphs(limits, config.mixed_prefill)
    shown.step("Capturing graphs", len(shapes))
    capture = capture_graphs(model, plan.shapes, shapes, shown.advance)
    _write_weights(checkpoint, plan, writer, shown)
    for name, data in text.files.items():
        writer.add_text(name, data)
    canaries = record_canaries(capture, model, limits, writer.map_tensors(0), shown)
    shown.step("Sealing the core", 1)
    path = writer.finish(
        _identity(config, checkpoint, limits, quantization),
        model,
        limits,
        config.mixed_prefill,
        capture.graphs,
        capture.kernels,
        capture.tuning,
        capture.programs,
        canaries=canaries,
    )
    shown.advance()
    return path


def _write_weights(
    checkpoint: Checkpoint, plan: WeightPlan, writer: CoreWriter, shown: ExportProgress
) -> None:
    shown.step("Packing weights", len(plan.shapes))
    for name, shape in plan.shapes.items():
        array = stored_weight(checkpoint, plan, name)
        if isinstance(shape, PackedShape):
            writer.add_tensor(0, name, name, shape.layout, array, shape.n, shape.k)
        else:
            writer.add_tensor(0, name, name, "plain", array)
        shown.advance()


def _identity(
    config: ExportConfig, checkpoint: Checkpoint, limits: Limits, quantization: Quantization
) -> Identity:
    """Say where the core comes from, with every setting that is baked into it."""
    settings: dict[str, str | int | float | bool | None] = {
        **asdict(limits),
        "mixed_prefill": config.mixed_prefill,
        "quantization": quantization,
        "activations": config.activations,
    }
    return Identity(
        flare_version=__version__,
        source=config.model,
        source_digest=source_digest(checkpoint.files),
        device=config.device,
        target=(),
        tensor_parallel_size=config.tensor_parallel_size,
        tuning=config.tuning,
        created=int(time.time()),
        settings=settings,
    )
