"""The whole export: a core that validates, settings that are refused first, nothing left behind."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from engine.core.reader import open_core
from engine.core.schema import Kind
from engine.core.validate import validate
from engine.errors import CheckpointError, FlareError, SettingsError
from engine.export.pipeline import export_core
from engine.export.progress import Silent
from engine.export.settings import ExportConfig
from tests.support.checkpoints import complete_gguf, complete_hf, save_hf
from tests.support.loading import load
from tests.support.serving import collect, ids, request
from tests.support.tokenizers import hf_tokenizer

Q4_0 = gguf.GGMLQuantizationType.Q4_0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hf") / "tiny"
    complete_hf(folder)
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_directory_becomes_a_valid_core(folder: Path, tmp_path: Path) -> None:
    config = ExportConfig(str(folder), tmp_path / "out.core", max_num_seqs=4, max_step_tokens=64)
    path = export_core(config)
    core = open_core(path)
    manifest = core.manifest
    validate(manifest)
    core.verify_storage()
    assert manifest.default_mixed
    assert manifest.model.id == "tiny" and manifest.model.quantization == "bf16"
    assert manifest.model.eos_token_ids == (1,)
    assert manifest.identity.settings["max_num_seqs"] == 4
    assert manifest.identity.source_digest and len(manifest.identity.source_digest) == 64
    assert {graph.kind for graph in manifest.catalog.graphs} == {
        Kind.DECODE, Kind.PREFILL, Kind.MIXED,
    }  # fmt: skip
    assert core.tensor("rope").shape == (256, 16)
    assert np.asarray(core.tensor("norm")).dtype == np.float32
    assert names(tmp_path) == ["out.core"]


def test_a_gguf_file_keeps_its_formats(tmp_path: Path) -> None:
    model = tmp_path / "small.gguf"
    complete_gguf(model, {"ffn_down.weight": Q4_0}, tie_word_embeddings=True)
    path = export_core(ExportConfig(str(model), tmp_path / "out.core", mixed_prefill=False))
    manifest = open_core(path).manifest
    layouts = {tensor.name: tensor.layout for tensor in manifest.catalog.storage}
    assert layouts["layers.0.down"] == "q4p16" and layouts["layers.0.qkv"] == "bf16p16"
    assert "head" not in layouts
    assert manifest.model.quantization == "bf16+q4_0"
    assert not manifest.default_mixed
    assert manifest.limits.max_model_len == 256


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"threads": 0}, "--threads"),
        ({"device": "cuda"}, "--device cuda"),
        ({"tensor_parallel_size": 2}, "--tensor-parallel-size 2"),
        ({"max_num_seqs": 0}, "--max-num-seqs"),
        ({"max_step_tokens": 10**9}, "--max-step-tokens"),
        ({"max_num_seqs": 64, "max_step_tokens": 32}, "below --max-num-seqs"),
        ({"max_model_len": 257}, "257"),
        ({"max_model_len": 0}, "--max-model-len"),
    ],
)
def test_a_setting_is_refused_by_its_flag(
    changes: dict[str, Any], message: str, folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match=message):
        export_core(ExportConfig(str(folder), tmp_path / "out.core", **changes))
    assert names(tmp_path) == []


def test_an_existing_output_is_refused_before_the_checkpoint_is_read(tmp_path: Path) -> None:
    output = tmp_path / "out.core"
    output.mkdir()
    (output / "notes.txt").write_text("mine")
    with pytest.raises(SettingsError, match="exists"):
        export_core(ExportConfig(str(tmp_path), output))
    assert (output / "notes.txt").read_text() == "mine"


def test_an_output_under_a_file_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match="cannot write"):
        export_core(ExportConfig(str(folder), tmp_path / "file" / "out.core"))


def test_overwrite_replaces_a_core(folder: Path, tmp_path: Path) -> None:
    config = ExportConfig(str(folder), tmp_path / "out.core", max_num_seqs=2, overwrite=True)
    export_core(config)
    first = open_core(tmp_path / "out.core").manifest.root_digest
    export_core(ExportConfig(str(folder), config.output, max_num_seqs=3, overwrite=True))
    manifest = open_core(tmp_path / "out.core").manifest
    assert manifest.limits.max_num_seqs == 3 and manifest.root_digest != first
    assert names(tmp_path) == ["out.core"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), CheckpointError("stopped")])
def test_a_failed_export_leaves_nothing(error: BaseException, folder: Path, tmp_path: Path) -> None:
    class Stops(Silent):
        def step(self, title: str, total: int) -> None:
            if "Sealing" in title:
                raise error

    with pytest.raises(type(error)):
        export_core(ExportConfig(str(folder), tmp_path / "out.core"), Stops())
    assert names(tmp_path) == []


SCRIPT = """
import sys
from pathlib import Path
from engine.export.pipeline import export_core
from engine.export.progress import Silent
from engine.export.settings import ExportConfig

class Waits(Silent):
    def step(self, title, total):
        if "Packing" in title:
            print("packing", flush=True)
            sys.stdin.read()

export_core(ExportConfig(sys.argv[1], Path(sys.argv[2])), Waits())
"""


def test_an_interrupt_of_the_process_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(folder), str(tmp_path / "out.core")]
    root = str(Path(__file__).parents[3])
    with subprocess.Popen(
        command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"packing\n"
        assert len(names(tmp_path)) == 1
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)
    assert process.returncode != 0
    assert names(tmp_path) == []


def test_a_tokenizer_larger_than_the_embedding_is_refused(tmp_path: Path) -> None:
    complete_hf(tmp_path / "tiny", vocab_size=64)
    with pytest.raises(CheckpointError, match="embeds only 64"):
        export_core(ExportConfig(str(tmp_path / "tiny"), tmp_path / "out.core"))


async def test_rows_of_the_head_beyond_the_tokenizer_are_never_said(tmp_path: Path) -> None:
    """A head padded with rows that would win every time."""
    folder = tmp_path / "tiny"
    known = hf_tokenizer().get_vocab_size()
    model = complete_hf(folder, vocab_size=known + 40)
    with torch.no_grad():
        model.lm_head.weight[known:] *= 50
    save_hf(model, folder)
    core = tmp_path / "out.core"
    export_core(ExportConfig(str(folder), core, max_num_seqs=2, max_step_tokens=16))
    spec = open_core(core).manifest.model
    assert spec.vocab_size == known and spec.logits_width >= known + 40
    engine, device = load(core)
    engine.start()
    streams = engine.submit(
        [
            request("greedy", [3, 4, 5], 6, logprobs=20, ignore_eos=True),
            request("warm", [5, 4], 6, logprobs=20, ignore_eos=True, temperature=2.0, seed=1),
        ]
    )
    for stream in streams:
        deltas = await collect(stream)
        assert len(ids(deltas)) == 6 and max(ids(deltas)) < known
        assert max(token for d in deltas for token, _ in d.logprobs[0].top) < known
    assert device.logits[0].argmax() >= known  # unmasked, padding would have been taken
    await engine.close()


def test_end_tokens_are_the_union_of_every_source(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    complete_hf(folder, eos_token_id=5)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 5]}))
    export_core(ExportConfig(str(folder), tmp_path / "out.core"))
    assert open_core(tmp_path / "out.core").manifest.model.eos_token_ids == (1, 5, 7)


def test_every_baked_setting_is_in_the_identity(folder: Path, tmp_path: Path) -> None:
    base = ExportConfig(str(folder), tmp_path / "base.core", max_num_seqs=2, max_step_tokens=16)
    export_core(base)
    settings = open_core(base.output).manifest.identity.settings
    changes: dict[str, Any] = {
        "max_num_seqs": 3,
        "max_step_tokens": 8,
        "max_model_len": 99,
        "quantization": "int8",
        "mixed_prefill": False,
    }
    for key, value in changes.items():
        output = tmp_path / f"{key}.core"
        options = {"max_num_seqs": 2, "max_step_tokens": 16} | {key: value}
        export_core(ExportConfig(str(folder), output, **options))
        changed = open_core(output).manifest.identity.settings
        assert {name for name in settings if changed[name] != settings[name]} == {key}


def test_notes_reach_the_progress(tmp_path: Path) -> None:
    notes: list[str] = []

    class Keeps(Silent):
        def note(self, text: str) -> None:
            notes.append(text)

    complete_hf(tmp_path / "tiny", hidden_size=48)
    config = ExportConfig(str(tmp_path / "tiny"), tmp_path / "out.core", quantization="int8")
    export_core(config, Keeps())
    assert any("48 columns" in note for note in notes)


def test_a_missing_model_names_what_is_expected(tmp_path: Path) -> None:
    with pytest.raises(FlareError, match="no such file") as caught:
        export_core(ExportConfig(str(tmp_path / "absent"), tmp_path / "out.core"))
    assert caught.value.hint is not None and "smollm2" in caught.value.hint
