"""Llama models in safetensors directories: shards, index, tensor names."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from msgspec import Struct

from engine.errors import CheckpointError
from engine.export.checkpoint.base import SourceDType, SourceModel, SourceTensor
from engine.export.checkpoint.hf_config import hf_model, read_json
from engine.export.checkpoint.mapped import TensorFile
from engine.export.checkpoint.parameters import bind, listing, llama_parameters, source_names
from engine.export.checkpoint.paths import inside
from engine.export.checkpoint.safetensors_file import read_safetensors

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
HEAD = "lm_head.weight"
TOP = {"embed": "model.embed_tokens.weight", "norm": "model.norm.weight", "head": HEAD}
LAYER = {
    "attn_norm": "input_layernorm.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight",
    "q_bias": "self_attn.q_proj.bias",
    "k_bias": "self_attn.k_proj.bias",
    "v_bias": "self_attn.v_proj.bias",
    "o_bias": "self_attn.o_proj.bias",
    "ffn_norm": "post_attention_layernorm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
}
IGNORED_SUFFIX = "rotary_emb.inv_freq"
"""Buffers that old checkpoints stored; they follow from the configuration."""
TEXT_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)


class HfCheckpoint(Struct, frozen=True):
    """An open safetensors directory (``base.Checkpoint``). names: logical -> tensor name."""

    folder: Path
    model: SourceModel
    shards: Mapping[str, TensorFile]
    names: Mapping[str, str]
    notes: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[Path, ...]:
        texts = [self.folder / name for name in TEXT_FILES if (self.folder / name).is_file()]
        shards = dict.fromkeys(file.path for file in self.shards.values())
        return (*texts, *shards)

    @property
    def default_quantization(self) -> Literal["none", "keep"]:
        return "none"

    def dtype(self, name: str) -> SourceDType:
        source = self.names[name]
        return self.shards[source].tensors[source].dtype

    def tensor(self, name: str) -> SourceTensor:
        source = self.names[name]
        return self.shards[source].tensor(source)


def open_hf(folder: Path, name: str | None = None) -> HfCheckpoint:
    """Open a Hugging Face directory. ``name``: the model's name, the folder's when None.

    Raises CheckpointError for an unsupported model, an unsafe path, a missing shard or tensor.
    """
    model = hf_model(folder, name or _folder_name(folder.resolve()))
    shards = _open_shards(folder)
    wanted = {
        logical: (source_names(logical, TOP, LAYER, "model.layers.{}."), shape)
        for logical, shape in llama_parameters(model).items()
    }
    ignored = {key for key in shards if key.endswith(IGNORED_SUFFIX)}
    notes: tuple[str, ...] = ()
    if model.tied_head and HEAD in shards:
        ignored.add(HEAD)
        notes = (f"{HEAD} is not used: the configuration ties the head to the embedding",)
    available = {key: file.tensors[key].shape for key, file in shards.items() if key not in ignored}
    return HfCheckpoint(folder, model, shards, bind(str(folder), wanted, available), notes)


def _folder_name(folder: Path) -> str:
    """The folder's name; of a snapshot in the Hugging Face cache, ``owner/repository``."""
    repository = folder.parent.parent.name
    if folder.parent.name == "snapshots" and repository.startswith("models--"):
        return repository.removeprefix("models--").replace("--", "/", 1)
    return folder.name


def _open_shards(folder: Path) -> Mapping[str, TensorFile]:
    """Return tensor name -> the file that holds it."""
    if (folder / SINGLE).exists() or (folder / SINGLE).is_symlink():
        file = read_safetensors(inside(folder, SINGLE))
        return MappingProxyType(dict.fromkeys(file.tensors, file))
    if not (folder / INDEX).exists():
        raise CheckpointError(f"{folder} holds neither {SINGLE} nor {INDEX}")
    return _open_index(folder, read_json(folder, INDEX).get("weight_map"))


def _open_index(folder: Path, weight_map: object) -> Mapping[str, TensorFile]:
    source = f"{folder / INDEX}"
    if not isinstance(weight_map, dict) or not all(
        isinstance(name, str) for name in weight_map.values()
    ):
        raise CheckpointError(f"{source}: weight_map must map tensor names to file names")
    paths = {name: inside(folder, name) for name in dict.fromkeys(weight_map.values())}
    files = {name: read_safetensors(path) for name, path in paths.items()}
    absent = [
        f"{key} in {name}" for key, name in weight_map.items() if key not in files[name].tensors
    ]
    extra = [
        f"{key} in {name}"
        for name, file in files.items()
        for key in file.tensors
        if weight_map.get(key) != name
    ]
    if absent or extra:
        raise CheckpointError(f"{source} and the shards disagree about: {listing(absent + extra)}")
    return MappingProxyType({key: files[name] for key, name in weight_map.items()})
