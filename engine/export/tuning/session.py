"""One export's tuning: its journal, its bench, and the capture that comes of them."""

import importlib.util
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from engine.core.schema import Identity, Machine, ModelSpec, Tuning
from engine.device.cpu.device import choose_isa
from engine.device.cpu.threads import default_threads
from engine.errors import SettingsError
from engine.export.catalog import Capture
from engine.export.progress import ExportProgress
from engine.export.tuning.journal import Journal, journal_path
from engine.export.tuning.machine import processor, this_machine
from engine.export.tuning.measure import EFFORT, on_bench, with_journal
from engine.export.tuning.rig import Rig
from engine.export.tuning.second import SecondWeight, second_weights
from engine.export.tuning.task import Task, Told
from engine.export.tuning.tune import tune


class Bench(Struct, frozen=True):
    """What is measured on: compute threads, and the instruction-set path that kernels take."""

    threads: int
    isa: str


class TunedExport(Struct, frozen=True):
    """What tuning made: the capture, the machine that it was measured on, and the weights that the
    capture reads in a second layout, packed."""

    capture: Capture
    machine: Machine
    seconds: Mapping[SecondWeight, NDArray[np.uint8]]


def check_profile(profile: Tuning) -> None:
    """Raise SettingsError when this installation lacks what the profile needs."""
    if profile == "audit" and importlib.util.find_spec("torch") is None:
        raise SettingsError(
            "--tuning audit compares kernels with the torch reference, and torch is not installed",
            "pip install 'flare-serve[reference]', or take --tuning balanced",
        )


def here(threads: int | None) -> Bench:
    """Return the bench that this machine gives; None: the physical cores, as in a run."""
    return Bench(threads or default_threads(), choose_isa("auto"))


def open_journal(output: Path, identity: Identity, bench: Bench, resume: bool) -> Journal:
    """Open the journal of an export of this identity. Raises SettingsError (see ``Journal``)."""
    header = {
        "flare_version": identity.flare_version,
        "source_digest": identity.source_digest,
        "device": identity.device,
        "tuning": identity.tuning,
        **identity.settings,
        "processor": processor(),
        "isa": bench.isa,
        "threads": bench.threads,
        "created": identity.created,
    }
    return Journal(journal_path(output), header, resume)


def tune_export(
    task: Task,
    model: ModelSpec,
    weights: Mapping[str, NDArray[np.generic]],
    bench: Bench,
    journal: Journal,
    shown: ExportProgress,
) -> TunedExport:
    """Measure what the journal does not hold, and choose. Raises DeviceError."""
    programs = task.capture.programs.values()
    rig = Rig(model, programs, weights, task.max_model_len, bench.threads)
    if journal.found:
        shown.note(f"{journal.path} holds {len(journal.found)} measurements: going on from there")
    ask = with_journal(journal, on_bench(rig, EFFORT[task.profile]))
    capture = tune(task, ask, Told(shown.step, shown.advance))
    seconds = second_weights(capture.programs.values())
    return TunedExport(
        capture,
        this_machine(bench.threads, bench.isa, journal.created),
        {second: second.pack(rig.weights[second.weight]) for second in seconds},
    )
