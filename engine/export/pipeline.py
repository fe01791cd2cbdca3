"""The export pipeline: a checkpoint in, a complete core out, or nothing."""

import time
from pathlib import Path

from msgspec import Struct
from msgspec.structs import asdict, replace

from engine import __version__
from engine.core.schema import Identity, Limits, Machine, ModelSpec, StepTime
from engine.core.writer import CoreWriter
from engine.export.canaries import record_canaries
from engine.export.capture import PackedShape
from engine.export.catalog import Capture, capture_graphs
from engine.export.checkpoint.base import Checkpoint
from engine.export.checkpoint.open import open_checkpoint
from engine.export.graphs import plan_graphs
from engine.export.progress import ExportProgress, Silent
from engine.export.settings import ExportConfig, check_config, resolve_limits
from engine.export.source import resolve_model, source_digest
from engine.export.spec import model_spec
from engine.export.step_times import measure_step_times
from engine.export.text import source_text
from engine.export.tuning.journal import Journal
from engine.export.tuning.second import LAYOUT as SECOND_LAYOUT
from engine.export.weights import Quantization, WeightPlan, plan_weights, stored_weight


def export_core(config: ExportConfig, progress: ExportProgress | None = None) -> Path:
    """Export a checkpoint to a core and return its path.

    The core appears under its name only when it is complete; an error or Ctrl-C leaves nothing, but
    where kernels are timed the journal of what was measured (``engine.export.tuning.journal``).
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


class Draft(Struct, frozen=True):
    """What a core says of itself, known before its graphs and weights are made."""

    identity: Identity
    model: ModelSpec
    limits: Limits


def _export(
    config: ExportConfig, checkpoint: Checkpoint, writer: CoreWriter, shown: ExportProgress
) -> Path:
    limits = resolve_limits(config, checkpoint.model.context_length)
    quantization = config.quantization or checkpoint.default_quantization
    identity = _identity(config, checkpoint, limits, quantization)
    plan = plan_weights(checkpoint, quantization, limits.max_model_len, config.activations)
    text = source_text(checkpoint)
    draft = Draft(identity, model_spec(checkpoint.model, text, plan.label), limits)
    shown.advance()
    for note in (*checkpoint.notes, *plan.notes):
        shown.note(note)
    for name, data in text.files.items():
        writer.add_text(name, data)
    if config.tuning == "fast":
        if config.resume:
            shown.note("profile fast keeps no journal: there is nothing to go on from")
        capture = _capture(config, draft, plan, shown)
        _write_weights(checkpoint, plan, writer, shown)
        return _seal(config, draft, capture, (), writer, shown)
    return _export_tuned(config, draft, checkpoint, plan, writer, shown)


def _export_tuned(
    config: ExportConfig,
    draft: Draft,
    checkpoint: Checkpoint,
    plan: WeightPlan,
    writer: CoreWriter,
    shown: ExportProgress,
) -> Path:
    """Capture, pack and measure; the journal is deleted when the core is in its place."""
    from engine.export.tuning.session import check_profile, here, open_journal, tune_export
    from engine.export.tuning.task import Task

    check_profile(config.tuning)
    bench = here(config.threads)
    with open_journal(config.output, draft.identity, bench, config.resume) as journal:
        draft = replace(draft, identity=replace(draft.identity, created=journal.created))
        capture = _capture(config, draft, plan, shown)
        _write_weights(checkpoint, plan, writer, shown)
        task = Task(capture, config.tuning, draft.limits.max_model_len, config.layout_budget)
        tuned = tune_export(task, draft.model, writer.map_tensors(0), bench, journal, shown)
        for second, packed in tuned.seconds.items():
            name, weight = second.name, second.weight
            writer.add_tensor(0, name, weight, SECOND_LAYOUT, packed, second.n, second.k)
        path = _seal(config, draft, tuned.capture, (tuned.machine,), writer, shown, journal)
        journal.remove()
    return path


def _capture(
    config: ExportConfig, draft: Draft, plan: WeightPlan, shown: ExportProgress
) -> Capture:
    shapes = plan_graphs(draft.limits, config.mixed_prefill)
    shown.step("Capturing graphs", len(shapes))
    return capture_graphs(draft.model, plan.shapes, shapes, shown.advance)


def _seal(
    config: ExportConfig,
    draft: Draft,
    capture: Capture,
    machines: tuple[Machine, ...],
    writer: CoreWriter,
    shown: ExportProgress,
    journal: Journal | None = None,
) -> Path:
    model, limits, weights = draft.model, draft.limits, writer.map_tensors(0)
    canaries = record_canaries(capture, model, limits, weights, shown)
    step_times: tuple[StepTime, ...] = ()
    if config.step_times or config.tuning != "fast":
        machine, step_times = measure_step_times(
            capture, model, limits, weights, config.threads, shown, journal
        )
        machines = machines or (machine,)
    shown.step("Sealing the core", 1)
    path = writer.finish(
        draft.identity,
        draft.model,
        draft.limits,
        config.mixed_prefill,
        capture.graphs,
        capture.kernels,
        capture.tuning,
        capture.programs,
        machines,
        step_times,
        canaries,
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
        "layout_budget": config.layout_budget,
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
