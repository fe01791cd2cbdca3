"""Capture: a recorder that model definitions call, and the launches it collects."""

from collections.abc import Callable, Mapping

from msgspec import Struct

from engine.core.schema import KVLayout
from engine.ir.ops import INPUTS, STATE
from engine.ir.program import Attr, Buffer, Dim, Domain, Launch, Program, Space

KernelChoice = Callable[[str, Mapping[str, Attr]], str]
"""(op, attributes) -> catalog kernel id."""


class PackedShape(Struct, frozen=True):
    """A packed weight as programs see it: logical sizes, stored shape, class per role."""

    name: str
    layout: str
    n: int
    k: int
    stored: tuple[int, ...]
    prompt_class: str
    generated_class: str


class PlainShape(Struct, frozen=True):
    """A float32 weight, stored as it is."""

    name: str
    shape: tuple[int, ...]


WeightShape = PackedShape | PlainShape


class Value(Struct, frozen=True):
    """A recorded intermediate: f32 [rows, width]; rows is "tokens" or "logits"."""

    name: str
    rows: str
    width: int


class Heads(Struct, frozen=True):
    """Query heads, key/value heads and their common dimension."""

    heads: int
    kv_heads: int
    head_dim: int

    def attrs(self) -> dict[str, Attr]:
        """As launch attributes."""
        return {"heads": self.heads, "kv_heads": self.kv_heads, "head_dim": self.head_dim}


class Recorder:
    """Collects the launches of one program. Each method records one op of ``engine/ir/ops.py``.

    weights: every stored weight by name. kernels: chooses the kernel of each launch. Values are
    written once; ``finish`` returns the program without arena offsets (``memory_plan``).
    """

    def __init__(
        self, weights: Mapping[str, WeightShape], kv: KVLayout, kernels: KernelChoice
    ) -> None:
        self._weights = weights
        self._kernels = kernels
        self._launches: list[Launch] = []
        self._buffers = {
            name: Buffer(name, Space.INPUT, "i32", shape) for name, shape in INPUTS.items()
        }
        self._buffers[STATE] = Buffer(STATE, Space.STATE, "u8", (kv.bytes_per_block,))

    def embed(self, name: str, weight: str) -> Value:
        """Rows of the packed embedding ``weight`` for the input token ids."""
        packed = self._packed(weight)
        attrs: dict[str, Attr] = {"vocab": packed.n, "width": packed.k, "layout": packed.layout}
        return self._launch("embed", name, ("token_ids", weight), ("tokens", packed.k), attrs)

    def rms_norm(self, name: str, x: Value, weight: str, eps: float) -> Value:
        """Root-mean-square norm of each row, times the plain ``weight``."""
        attrs: dict[str, Attr] = {"width": x.width, "eps": eps}
        inputs = (x.name, self._plain(weight).name)
        return self._launch("rms_norm", name, inputs, (x.rows, x.width), attrs)

    def linear(
        self,
        name: str,
        x: Value,
        weight: str,
        *,
        bias: str | None = None,
        residual: Value | None = None,
        activation: str = "none",
    ) -> Value:
        """act(x @ W^T + bias) + residual, in the classes that the weight was planned with."""
        packed = self._packed(weight)
        attrs: dict[str, Attr] = {
            "n": packed.n,
            "k": packed.k,
            "layout": packed.layout,
            "activation": activation,
            "bias": bias is not None,
            "residual": residual is not None,
            "prompt_class": packed.prompt_class,
            "generated_class": packed.generated_class,
        }
        inputs = [x.name, weight]
        if bias is not None:
            inputs.append(self._plain(bias).name)
        if residual is not None:
            inputs.append(residual.name)
        width = packed.n // 2 if activation == "silu_mul" else packed.n
        return self._launch("linear", name, tuple(inputs), (x.rows, width), attrs)

    def rope_store_kv(self, name: str, qkv: Value, rope: str, sizes: Heads, layer: int) -> Value:
        """Rotate q and k, store k and v in the cache of ``layer``; the rotated q."""
        attrs: dict[str, Attr] = {**sizes.attrs(), "layer": layer}
        inputs = (qkv.name, self._plain(rope).name, "positions", "slots", STATE)
        width = sizes.heads * sizes.head_dim
        return self._launch("rope_store_kv", name, inputs, ("tokens", width), attrs)

    def paged_attention(self, name: str, q: Value, sizes: Heads, layer: int, scale: float) -> Value:
        """Causal attention of each row over its sequence's cache of ``layer``."""
        attrs: dict[str, Attr] = {**sizes.attrs(), "layer": layer, "scale": scale}
        inputs = (q.name, STATE, "positions", "seg_starts", "seq_lens", "block_tables")
        return self._launch("paged_attention", name, inputs, ("tokens", q.width), attrs)

    def gather_rows(self, name: str, x: Value) -> Value:
        """The rows of ``x`` whose logits are wanted."""
        inputs = (x.name, "logit_rows")
        return self._launch("gather_rows", name, inputs, ("logits", x.width), {"width": x.width})

    def optional(self, weight: str) -> str | None:
        """Return the name of a weight if the model has it."""
        return weight if weight in self._weights else None

    def finish(self, output: Value) -> Program:
        """Return the recorded program with ``output`` as its one output buffer."""
        buffer = self._buffers[output.name]
        self._buffers[output.name] = Buffer(buffer.name, Space.OUTPUT, buffer.dtype, buffer.shape)
        return Program("body", Domain(1, 1, 1), self._buffers, tuple(self._launches))

    def _launch(
        self,
        op: str,
        name: str,
        inputs: tuple[str, ...],
        shape: tuple[Dim, int],
        attrs: Mapping[str, Attr],
    ) -> Value:
        if name in self._buffers:
            raise ValueError(f"value {name!r} is recorded twice")
        self._buffers[name] = Buffer(name, Space.TEMP, "f32", shape)
        kernel = self._kernels(op, attrs)
        self._launches.append(Launch(op, kernel, inputs, (name,), attrs))
        return Value(name, str(shape[0]), shape[1])

    def _packed(self, name: str) -> PackedShape:
        weight = self._weights[name]
        if not isinstance(weight, PackedShape):
            raise ValueError(f"weight {name!r} is not packed")
        self._buffers[name] = Buffer(name, Space.WEIGHT, "u8", weight.stored)
        return weight

    def _plain(self, name: str) -> PlainShape:
        weight = self._weights[name]
        if not isinstance(weight, PlainShape):
            raise ValueError(f"weight {name!r} is packed")
        self._buffers[name] = Buffer(name, Space.WEIGHT, "f32", weight.shape)
        return weight
