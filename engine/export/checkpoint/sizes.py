"""Checks of a source model's sizes that hold for every format."""

from engine.errors import CheckpointError
from engine.export.checkpoint.base import SourceModel

MAX_HEAD_DIM = 256
MAX_LAYERS = 4096


def check_sizes(source: str, model: SourceModel) -> None:
    """Raise CheckpointError when the sizes cannot be served, naming the size."""
    faults = {
        f"{model.heads} attention heads are not a multiple of {model.kv_heads} key/value heads": (
            model.heads % model.kv_heads != 0
        ),
        f"head dimension {model.head_dim} must be even and at most {MAX_HEAD_DIM}": (
            model.head_dim % 2 != 0 or model.head_dim > MAX_HEAD_DIM
        ),
        f"{model.layers} layers are more than {MAX_LAYERS}": model.layers > MAX_LAYERS,
    }
    found = [message for message, wrong in faults.items() if wrong]
    if found:
        raise CheckpointError(f"{source}: " + "; ".join(found))
