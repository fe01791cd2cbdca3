"""Safetensors directories: shards, unsafe paths, configuration spellings, refused features."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.errors import CheckpointError
from engine.export import formats
from engine.export.checkpoint.base import RopeSpec
from engine.export.checkpoint.hf_llama import INDEX, SINGLE, open_hf
from engine.export.checkpoint.safetensors_file import read_safetensors
from tests.support.checkpoints import save_hf, tiny_model


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    folder = save_hf(tiny_model(), tmp_path / "model", shard_bytes=60_000)
    assert len(list(folder.glob("model-*.safetensors"))) >= 3
    return folder


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("shard_bytes", [40_000, 10_000_000])
def test_every_tensor_is_read(dtype: str, shard_bytes: int, tmp_path: Path) -> None:
    model = tiny_model(dtype=dtype, attention_bias=True)
    checkpoint = open_hf(save_hf(model, tmp_path / "model", shard_bytes))
    state = model.state_dict()
    for logical, source in checkpoint.names.items():
        expected = state[source].float().numpy()
        assert np.array_equal(formats.float32(checkpoint.tensor(logical)), expected)
        bits = state[source].bfloat16().float().numpy()
        assert np.array_equal(formats.widen(formats.bfloat16(checkpoint.tensor(logical))), bits)
    assert set(checkpoint.names.values()) == set(state)


def test_a_tied_head_needs_no_tensor_and_an_untied_one_does(tmp_path: Path) -> None:
    folder = save_hf(tiny_model(tie_word_embeddings=True), tmp_path / "model")
    assert "head" not in open_hf(folder).names
    edit_json(folder / "config.json", tie_word_embeddings=False)
    with pytest.raises(CheckpointError, match=r"no data for: lm_head\.weight"):
        open_hf(folder)


def test_a_stored_head_of_a_tied_model_is_ignored_and_said(tmp_path: Path) -> None:
    folder = save_hf(tiny_model(), tmp_path / "model", tie_word_embeddings=True)
    checkpoint = open_hf(folder)
    assert "head" not in checkpoint.names
    assert "lm_head.weight" in checkpoint.notes[0]


def test_a_missing_shard_is_named(sharded: Path) -> None:
    victim = sorted(sharded.glob("model-*.safetensors"))[1]
    victim.unlink()
    with pytest.raises(CheckpointError, match=victim.name):
        open_hf(sharded)


@pytest.mark.parametrize(
    "name", ["../other/model.safetensors", "/etc/hostname", "a/../../x", "C:\\x", "a\\b", "", "\0"]
)
def test_an_index_that_leaves_the_folder_is_refused(name: str, sharded: Path) -> None:
    """H58: names in the index of a checkpoint."""
    index = json.loads((sharded / INDEX).read_text())
    index["weight_map"]["model.norm.weight"] = name
    (sharded / INDEX).write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="plain relative name"):
        open_hf(sharded)


@pytest.mark.parametrize("which", ["shard", "config.json", INDEX])
def test_a_link_out_of_the_folder_is_refused(which: str, sharded: Path) -> None:
    """H58: files of the weights."""
    victim = sorted(sharded.glob("model-*.safetensors"))[0] if which == "shard" else sharded / which
    outside = sharded.parent / "outside"
    victim.rename(outside)
    victim.symlink_to(outside)
    with pytest.raises(CheckpointError, match="leads out of the checkpoint"):
        open_hf(sharded)


def test_a_single_file_that_links_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    folder = save_hf(tiny_model(), tmp_path / "model")
    (folder / SINGLE).rename(tmp_path / "outside")
    (folder / SINGLE).symlink_to(tmp_path / "outside")
    with pytest.raises(CheckpointError, match="leads out of the checkpoint"):
        open_hf(folder)


def test_a_shard_in_a_linked_folder_is_refused(sharded: Path) -> None:
    victim = sorted(sharded.glob("model-*.safetensors"))[0]
    other = sharded.parent / "other"
    other.mkdir()
    victim.rename(other / victim.name)
    (sharded / "sub").symlink_to(other)
    index = json.loads((sharded / INDEX).read_text())
    for key, name in index["weight_map"].items():
        if name == victim.name:
            index["weight_map"][key] = f"sub/{name}"
    (sharded / INDEX).write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="leads out of the checkpoint"):
        open_hf(sharded)


def test_a_hub_snapshot_links_to_its_blobs(tmp_path: Path) -> None:
    plain = save_hf(tiny_model(), tmp_path / "plain")
    repository = tmp_path / "models--a--b"
    snapshot = repository / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    for index, file in enumerate(plain.iterdir()):
        file.rename(repository / "blobs" / str(index))
        (snapshot / file.name).symlink_to(Path("../../blobs") / str(index))
    assert open_hf(snapshot).model.layers == 2


def test_index_and_shards_must_agree(sharded: Path) -> None:
    index = json.loads((sharded / INDEX).read_text())
    del index["weight_map"]["model.norm.weight"]
    (sharded / INDEX).write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight"):
        open_hf(sharded)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["Qwen2ForCausalLM"]}, "Qwen2ForCausalLM"),
        ({"model_type": "mistral"}, "mistral"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"sliding_window": 4096}, "sliding_window"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "yarn"),
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "dynamic"),
        ({"rope_scaling": {"type": "linear", "factor": -1}}, "factor"),
        ({"rope_scaling": {"type": "linear", "factor": 2, "surprise": 1}}, "surprise"),
        ({"rope_scaling": {"type": "linear", "rope_type": "default", "factor": 2}}, "same as"),
        ({"rope_scaling": 3}, "must be an object"),
        ({"num_hidden_layers": True}, "num_hidden_layers"),
        ({"hidden_size": 1 << 40}, "hidden_size"),
        ({"num_key_value_heads": 3}, "multiple"),
        ({"head_dim": 15}, "even"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps"),
        ({"num_hidden_layers": 3}, r"model\.layers\.2\."),
        ({"num_hidden_layers": 1}, r"unexpected tensors: model\.layers\.1\."),
        ({"intermediate_size": 128}, "wrong shape"),
    ],
)
def test_a_configuration_that_cannot_be_served_is_named(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = save_hf(tiny_model(), tmp_path / "model", **changes)
    with pytest.raises(CheckpointError, match=message):
        open_hf(folder)


LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"rope_parameters": None, "rope_theta": 500.0}, RopeSpec(500.0)),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}}, RopeSpec(7.0)),
        ({"rope_parameters": {}, "rope_scaling": {}, "rope_theta": 8.0}, RopeSpec(8.0)),
        (
            {"rope_theta": 9.0, "rope_scaling": {"type": "linear", "factor": 2}},
            RopeSpec(9.0, "linear", 2.0),
        ),
        (
            {"rope_scaling": {"rope_type": "linear", "factor": 2.0}, "rope_theta": 9.0},
            RopeSpec(9.0, "linear", 2.0),
        ),
        (
            {"rope_parameters": {"rope_type": "llama3", "rope_theta": 9.0, **LLAMA3}},
            RopeSpec(9.0, "llama3", 8.0, 1.0, 4.0, 64),
        ),
        (
            {"rope_scaling": {"type": "llama3", **LLAMA3}, "rope_theta": 9.0},
            RopeSpec(9.0, "llama3", 8.0, 1.0, 4.0, 64),
        ),
    ],
)  # fmt: skip
def test_both_spellings_of_the_rotary_settings(
    changes: dict[str, Any], expected: RopeSpec, tmp_path: Path
) -> None:
    folder = save_hf(tiny_model(), tmp_path / "model", **changes)
    assert open_hf(folder).model.rope == expected


def container(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(shape: list[Any], offsets: list[Any], dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (struct.pack("<Q", 1 << 60) + b"{}", "claims"),
        (b"\x01", "claims"),
        (container(b"[1]"), "not a JSON object"),
        (container(b"{" * 50_000), "not valid JSON"),
        (container(b'{"a": 1, "a": 2}'), "twice"),
        (container({"t": entry([4], [0, 16])}), "ends at byte"),
        (container({"t": entry([4], [0, 12])}, bytes(16)), "needs 16"),
        (container({"t": entry([1 << 62, 16], [0, 0])}, bytes(16)), "needs"),
        (container({"t": entry([-4], [0, -16])}, bytes(16)), "shape"),
        (container({"t": entry([4.0], [0, 16])}, bytes(16)), "shape"),
        (container({"t": entry([2, 0], [0, 0])}), "shape"),
        (container({"t": entry([4], [0, 16], "I64")}, bytes(16)), "I64"),
        (container({"t": entry([4], [0, 16]), "u": entry([4], [8, 24])}, bytes(24)), "overlap"),
        (container({"t": {"dtype": "F32"}}), "data_offsets"),
        (b"", "empty"),
    ],
)
def test_a_damaged_container_is_refused(data: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=message):
        read_safetensors(path)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_values_that_are_not_finite_are_refused(dtype: str, tmp_path: Path) -> None:
    model = tiny_model(dtype=dtype)
    model.model.layers[0].mlp.up_proj.weight.data[3, 5] = float("nan")
    checkpoint = open_hf(save_hf(model, tmp_path / "model"))
    for read in (formats.float32, formats.bfloat16):
        with pytest.raises(CheckpointError, match=r"up_proj\.weight"):
            read(checkpoint.tensor("layers.0.up"))
