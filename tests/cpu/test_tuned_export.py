"""Exports that measure: valid cores, the same bits, kills at any moment, and going on."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.core.reader import open_core
from engine.core.schema import Manifest
from engine.core.validate import validate
from engine.errors import DeviceError, SettingsError
from engine.export.pipeline import export_core
from engine.export.progress import Silent
from engine.export.settings import ExportConfig
from engine.export.tuning import reference
from engine.export.tuning.check import check
from engine.export.tuning.journal import Journal, journal_path
from engine.export.tuning.measure import on_bench
from engine.export.tuning.questions import Batch, Question
from engine.export.tuning.rig import Rig, shape_of
from engine.export.tuning.sampling import Effort
from engine.export.tuning.shapes import by_shape, only, with_kernel
from engine.kernels.parameters import PARAMETERS, variant_id
from tests.support.checkpoints import complete_gguf, complete_hf

LIMITS = {"max_num_seqs": 4, "max_step_tokens": 64}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hf") / "tiny"
    complete_hf(folder)
    return folder


def config(folder: Path, output: Path, **changes: object) -> ExportConfig:
    values = {**LIMITS, "quantization": "int4", "tuning": "balanced", "threads": 2, **changes}
    return ExportConfig(str(folder), output, **values)  # type: ignore[arg-type]


def files(core: Path) -> dict[str, bytes]:
    return {
        path.relative_to(core).as_posix(): path.read_bytes()
        for path in sorted(core.rglob("*"))
        if path.is_file()
    }


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("profile", ["balanced", "audit"])
def test_a_profile_makes_a_valid_core(profile: str, folder: Path, tmp_path: Path) -> None:
    path = export_core(config(folder, tmp_path / "t.core", tuning=profile, **LIMITS))
    core = open_core(path)
    manifest = core.manifest
    validate(manifest)
    core.verify_storage()
    assert names(tmp_path) == ["t.core"]
    assert manifest.identity.tuning == profile
    [machine] = manifest.catalog.machines
    assert machine.threads == 2 and machine.isa and machine.processor
    records = [r for r in manifest.catalog.tuning if not r.key.startswith("layout/")]
    timed = [record for record in records if len(record.candidates) > 1]
    assert timed and {record.profile for record in manifest.catalog.tuning} == {profile}
    for candidate in (c for record in timed for c in record.candidates):
        assert candidate.samples and candidate.refused is None
        assert candidate.checked == ("reference+rows" if profile == "audit" else None)
    assert all(graph.reason.startswith("measured: ") for graph in manifest.catalog.graphs)


class Interrupts(Silent):
    """Raises in the middle of the measurements."""

    def __init__(self, after: int) -> None:
        self.left = after

    def step(self, title: str, total: int) -> None:
        self.timing = title.startswith("Timing")

    def advance(self) -> None:
        if self.timing:
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt


def test_an_interrupted_export_goes_on_to_the_same_bytes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "t.core"
    for after in (1, 4):
        with pytest.raises(KeyboardInterrupt):
            export_core(config(folder, output, resume=True), Interrupts(after))
        assert names(tmp_path) == ["t.core.journal"]
    with pytest.raises(SettingsError, match="interrupted export"):
        export_core(config(folder, output))
    with pytest.raises(SettingsError, match="threads: 2 there, now 1"):
        export_core(config(folder, output, resume=True, threads=1))
    kept: dict[str, bytes] = {}

    def keep(self: Journal) -> None:
        kept["journal"] = self.path.read_bytes()
        self.path.unlink()

    monkeypatch.setattr(Journal, "remove", keep)
    export_core(config(folder, output, resume=True))
    assert names(tmp_path) == ["t.core"]
    # The whole journal at once: nothing is measured, and every byte is the same.
    other = tmp_path / "other.core"
    journal_path(other).write_bytes(kept["journal"])
    export_core(config(folder, other, resume=True))
    assert kept["journal"].count(b"\n") > 5
    assert files(other) == files(output)


SCRIPT = """
import sys
from pathlib import Path
from engine.export.pipeline import export_core
from engine.export.progress import Lines
from engine.export.settings import ExportConfig

export_core(
    ExportConfig(
        sys.argv[1], Path(sys.argv[2]), tuning="balanced", quantization="int4", max_num_seqs=4,
        max_step_tokens=64, threads=1, resume=True,
    ),
    Lines(sys.stdout),
)
"""


def run_until(folder: Path, output: Path, seconds: float | None) -> int:
    """Export in a process of its own, killed some seconds after the timing began."""
    command = [sys.executable, "-c", SCRIPT, str(folder), str(output)]
    root = str(Path(__file__).parents[2])
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while "Timing kernels" not in process.stdout.readline():
            assert process.poll() is None
        if seconds is not None:
            time.sleep(seconds)
            os.kill(process.pid, signal.SIGKILL)
        process.stdout.read()
        return process.wait(timeout=60)


def test_a_kill_at_any_moment_leaves_a_journal_to_go_on_from(folder: Path, tmp_path: Path) -> None:
    output, draw = tmp_path / "t.core", random.Random(5)
    lines = 0
    for _ in range(4):
        code = run_until(folder, output, draw.uniform(0.01, 0.5))
        if output.exists():
            break  # it was complete before the kill came
        assert code == -signal.SIGKILL
        data = journal_path(output).read_bytes()
        assert data.count(b"\n") >= lines > -1
        lines = data.count(b"\n")
    else:
        assert run_until(folder, output, None) == 0
        assert not journal_path(output).exists()
    core = open_core(output)
    validate(core.manifest)
    core.verify_storage()


def test_ctrl_c_says_how_to_go_on(folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "t.core"
    command = [
        sys.executable, "-m", "app.cli", "export", str(folder), "--output", str(output),
        "--tuning", "audit", "--quantization", "int4", "--threads", "1",
    ]  # fmt: skip
    root = str(Path(__file__).parents[2])
    with subprocess.Popen(command, cwd=root, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        while "Timing kernels" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
        assert process.wait(timeout=60) == 130
    assert "hint: the same command with --resume goes on from here" in said
    assert names(tmp_path) == ["t.core.journal"]


class Model:
    """A tiny quantised model on the bench, and its largest mixed program."""

    def __init__(self, tmp_path: Path) -> None:
        complete_gguf(tmp_path / "m.gguf", {}, tie_word_embeddings=True)
        path = export_core(
            ExportConfig(
                str(tmp_path / "m.gguf"), tmp_path / "m.core", quantization="int4",
                max_num_seqs=8, max_step_tokens=96,
            )
        )  # fmt: skip
        self.core = open_core(path)
        manifest: Manifest = self.core.manifest
        self.manifest = manifest
        self.program = manifest.catalog.programs["mixed-96"]
        weights = {t.name: self.core.tensor(t.name) for t in manifest.catalog.storage}
        self.rig = Rig(
            manifest.model, manifest.catalog.programs.values(), weights,
            manifest.limits.max_model_len, 2,
        )  # fmt: skip

    def logits(self, program: object, batch: Batch) -> NDArray[np.uint32]:
        self.rig.reset()
        self.rig.fill(batch)
        self.rig.runner(program, batch)()  # type: ignore[arg-type]
        shape = shape_of(self.program.domain, batch)
        start = self.program.buffers["logits"].offset or 0
        width = self.manifest.model.logits_width
        rows = self.rig.context.arena[start : start + shape.logits * width * 4]
        return rows.view(np.uint32).copy()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    yield Model(tmp_path_factory.mktemp("model"))


ONCE = Effort(1, 1, 1.0, early=False)
BATCHES = (Batch(1, 0, 70), Batch(8, 0, 100), Batch(5, 60, 64), Batch(0, 96, 0))


@pytest.mark.parametrize("op", PARAMETERS)
@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_no_parameter_of_any_op_changes_the_logits(op: str, batch: Batch, model: Model) -> None:
    expected = model.logits(model.program, batch)
    assert np.isfinite(expected.view(np.float32)).all() and len(np.unique(expected)) > 50
    for name, parameter in PARAMETERS[op].items():
        for value in (parameter.smallest, 4, parameter.largest):
            launches = [
                launch if launch.op != op
                else with_kernel(model.program, [launch], variant_id(launch.kernel, {name: value}))
                .launches[0]
                for launch in model.program.launches
            ]  # fmt: skip
            found = model.logits(only(model.program, launches), batch)
            np.testing.assert_array_equal(found, expected, err_msg=f"{op} {name}={value}")


def test_every_shape_passes_its_check(model: Model) -> None:
    for shape, launches in by_shape(model.program).items():
        program = with_kernel(model.program, launches, launches[0].kernel)
        for batch in BATCHES:
            question = Question(shape, ("k",), (program,), batch, check=True)
            assert check(model.rig, question) == {}, (shape, batch)


def test_a_kernel_that_computes_something_else_is_caught(model: Model) -> None:
    """The second candidate reads another layer's weight."""
    programs = tuple(
        only(model.program, [x for x in model.program.launches if x.inputs[1:2] == (weight,)])
        for weight in ("layers.0.down", "layers.1.down")
    )
    question = Question("down", ("k", "other"), programs, BATCHES[2], check=True)
    assert list(check(model.rig, question)) == ["other"]
    answer = on_bench(model.rig, ONCE)(question)
    assert list(answer.samples) == ["k"] and "other bits" in answer.refused["other"]


def test_a_heuristic_that_is_not_the_reference_stops_the_export(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def doubled(*arguments: Any) -> Any:
        return 2 * correct(*arguments)

    correct = reference.reference_output
    monkeypatch.setattr(reference, "reference_output", doubled)
    launches = [x for x in model.program.launches if x.op == "paged_attention"]
    question = Question("a", ("k",), (only(model.program, launches),), BATCHES[2], check=True)
    with pytest.raises(DeviceError, match=r"differs from the reference by 50\.\d+ %"):
        on_bench(model.rig, ONCE)(question)
