"""The one interface over checkpoint formats: a typed source model and raw tensors by name."""

from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

SourceDType = Literal["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0"]
"""Element formats that export reads (GGUF specification; safetensors' names for the plain ones)."""

BLOCKS: dict[SourceDType, tuple[int, int]] = {
    "F32": (1, 4),
    "F16": (1, 2),
    "BF16": (1, 2),
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q8_0": (32, 34),
}
"""Values and bytes of one block of a format."""


class SourceTensor(Struct, frozen=True):
    """A tensor as the checkpoint stores it, row-major.

    shape: logical, at least one dimension. data: u8 [rows, bytes per row], a read-only view of the
    file (or a reordered copy); a row is the last dimension.
    """

    name: str
    dtype: SourceDType
    shape: tuple[int, ...]
    data: NDArray[np.uint8]


class RopeSpec(Struct, frozen=True):
    """Rotary frequencies. theta: base. kind "linear" divides them by ``factor``; "llama3" is the
    piecewise scaling of Llama 3.1; ``factors`` (one per frequency) divide them one by one.
    """

    theta: float
    kind: Literal["default", "linear", "llama3"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 0
    factors: tuple[float, ...] | None = None


class SourceModel(Struct, frozen=True):
    """What a checkpoint says of its model. Sizes in elements; vocab_rows: rows of the embedding.

    attention_bias: q, k and v have biases. output_bias: the attention output has one.
    """

    name: str
    architecture: Literal["llama"]
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_rows: int
    context_length: int
    rms_eps: float
    rope: RopeSpec
    tied_head: bool
    attention_bias: bool
    output_bias: bool


class SourceText(Struct, frozen=True):
    """Text files of a core by name (engine/text).

    eos_ids: end tokens that the checkpoint's configuration and its tokenizer name, sorted.
    vocab_size: ids that the tokenizer knows; end tokens are among them.
    """

    files: dict[str, bytes]
    eos_ids: tuple[int, ...]
    vocab_size: int


class Checkpoint(Protocol):
    """An open checkpoint. Logical tensor names: ``parameters.llama_parameters``."""

    @property
    def model(self) -> SourceModel: ...

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file that the core depends on, in a fixed order (for the source digest)."""
        ...

    @property
    def default_quantization(self) -> Literal["none", "keep"]:
        """What export does when it is not told: store bfloat16, or what the checkpoint stores."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know about how the checkpoint was read."""
        ...

    def dtype(self, name: str) -> SourceDType:
        """Stored format of a logical tensor."""
        ...

    def tensor(self, name: str) -> SourceTensor:
        """A logical tensor, rows in the order of the reference model."""
        ...
