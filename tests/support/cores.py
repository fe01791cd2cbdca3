"""Small synthetic cores: a two-layer Llama with random weights, in any choice of graphs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from engine.core.codec import PROGRAMS
from engine.core.paths import storage_path
from engine.core.safetensors import DTYPE_NAMES, RESERVED, align
from engine.core.schema import (
    FAMILY_OF_KIND,
    FORMAT_VERSION,
    Candidate,
    Catalog,
    Graph,
    Identity,
    Kernel,
    Kind,
    KVLayout,
    Limits,
    Machine,
    Manifest,
    ModelSpec,
    Section,
    StepTime,
    StorageTensor,
    TuningRecord,
)
from engine.core.writer import CoreWriter
from engine.ir.ops import INPUTS, STATE
from engine.ir.program import Attr, Buffer, Dim, Domain, DType, Launch, Program, Space
from engine.ir.verify import buffer_bytes
from engine.kernels.cpu import linear_kernel
from engine.kernels.layouts import pack_bf16, pack_q4, pack_q8
from engine.kernels.numerics import NumericsClass

EOS = 2
MACHINE = Machine("here", "Some CPU", 2, "avx2", 1_700_000_000)


@dataclass(frozen=True, slots=True)
class CoreSpec:
    """What to build. decode: capacities in sequences; prefill and mixed: in tokens.

    preferred: numerics class of generated rows where the layout is quantised.
    """

    decode: tuple[int, ...] = (1, 2, 4)
    prefill: tuple[int, ...] = (8, 32)
    mixed: tuple[int, ...] = (8, 32)
    verify: tuple[int, ...] = ()
    draft_tokens: int = 3
    default_mixed: bool = True
    max_num_seqs: int = 4
    max_model_len: int = 256
    max_step_tokens: int = 32
    layers: int = 2
    hidden: int = 64
    intermediate: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    vocab_size: int = 90
    layout: str = "bf16p16"
    preferred: NumericsClass = "int12_g32"
    seed: int = 0

    @property
    def prompt_class(self) -> str:
        return "bf16_t32"

    @property
    def generated_class(self) -> str:
        return "bf16_t32" if self.layout == "bf16p16" else self.preferred

    @property
    def linear_kernel(self) -> str:
        return linear_kernel(self.layout, self.prompt_class, self.generated_class)

    @property
    def logits_width(self) -> int:
        return -(-self.vocab_size // 16) * 16

    def model(self) -> ModelSpec:
        """Return the model's sizes."""
        return ModelSpec(
            id="tiny", architecture="llama", layers=self.layers, hidden=self.hidden,
            intermediate=self.intermediate, heads=self.heads, kv_heads=self.kv_heads,
            head_dim=self.head_dim, vocab_size=self.vocab_size, logits_width=self.logits_width,
            context_length=self.max_model_len, rms_eps=1e-5, rope_theta=10000.0, tied_head=True,
            quantization="none", eos_token_ids=(EOS,),
            kv=KVLayout(self.layers, self.kv_heads, self.head_dim),
        )  # fmt: skip

    def limits(self) -> Limits:
        """Return the limits that the core is exported for."""
        return Limits(self.max_num_seqs, self.max_model_len, self.max_step_tokens)


@dataclass(frozen=True, slots=True)
class Weight:
    """A stored weight. n, k: logical sizes of a packed one (0: plain float32)."""

    array: NDArray[np.generic]
    n: int = 0
    k: int = 0


def identity(**changes: object) -> Identity:
    """Return an identity of a CPU core, with changes."""
    base = Identity("0.1.0", "synthetic", "0" * 64, "cpu", ("portable",), 1, "fast", 1_700_000_000)
    return replace(base, **changes)  # type: ignore[arg-type]


def random_packed(random: np.random.Generator, layout: str, n: int, k: int) -> Weight:
    """Return a random weight of about unit gain in a packed layout."""
    values = random.standard_normal((n, k), np.float32) / np.float32(np.sqrt(k))
    if layout == "bf16p16":
        return Weight(pack_bf16((values.view(np.uint32) >> 16).astype(np.uint16)), n, k)
    groups = values.reshape(n, k // 32, 32)
    low, high = groups.min(2), groups.max(2)
    if layout == "q4p16":
        scales, minima = ((high - low) / 15).astype(np.float16), low.astype(np.float16)
        codes = np.clip(np.rint((groups - minima[..., None]) / scales[..., None]), 0, 15)
        return Weight(pack_q4(codes.reshape(n, k).astype(np.uint8), scales, minima), n, k)
    scales = (np.maximum(-low, high) / 127).astype(np.float16)
    codes = np.clip(np.rint(groups / scales[..., None]), -127, 127)
    return Weight(pack_q8(codes.reshape(n, k).astype(np.int8), scales), n, k)


def rope_table(length: int, head_dim: int, theta: float) -> NDArray[np.float32]:
    """Return cos | sin of each position: [length, head_dim]."""
    inverse = theta ** -(np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim))
    angle = np.arange(length, dtype=np.float32)[:, None] * inverse[None].astype(np.float32)
    return np.concatenate([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)


def weights(spec: CoreSpec) -> dict[str, Weight]:
    """Return every weight of the model by storage name, from the spec's seed."""
    random = np.random.default_rng(spec.seed)

    def packed(n: int, k: int) -> Weight:
        return random_packed(random, spec.layout, n, k)

    def norm() -> Weight:
        return Weight(1 + 0.1 * random.standard_normal(spec.hidden, np.float32))

    model = spec.model()
    table = rope_table(spec.max_model_len, spec.head_dim, model.rope_theta)
    result = {"embed": packed(spec.vocab_size, spec.hidden), "rope": Weight(table)}
    for i in range(spec.layers):
        qkv = (spec.heads + 2 * spec.kv_heads) * spec.head_dim
        result[f"layers.{i}.norm1"] = norm()
        result[f"layers.{i}.qkv"] = packed(qkv, spec.hidden)
        result[f"layers.{i}.o"] = packed(spec.hidden, spec.heads * spec.head_dim)
        result[f"layers.{i}.norm2"] = norm()
        result[f"layers.{i}.gate_up"] = packed(2 * spec.intermediate, spec.hidden)
        result[f"layers.{i}.down"] = packed(spec.hidden, spec.intermediate)
    result["norm"] = norm()
    return result


class Recorder:
    """Records launches and buffers of a program; every temporary gets its own arena bytes."""

    def __init__(self, spec: CoreSpec, stored: Mapping[str, Weight]) -> None:
        self._spec = spec
        self.buffers: dict[str, Buffer] = {}
        self.launches: list[Launch] = []
        self._stored = stored
        for name, shape in INPUTS.items():
            self.buffers[name] = Buffer(name, Space.INPUT, "i32", shape)
        self.buffers[STATE] = Buffer(STATE, Space.STATE, "u8", (1,))

    def weight(self, name: str) -> str:
        """Declare a weight buffer with its stored shape."""
        array = self._stored[name].array
        dtype: DType = "f32" if array.dtype == np.float32 else "u8"
        self.buffers[name] = Buffer(name, Space.WEIGHT, dtype, array.shape)
        return name

    def launch(
        self, op: str, inputs: tuple[str, ...], shape: tuple[Dim, ...], **attrs: Attr
    ) -> str:
        """Record a launch. Returns its output: a temporary, or ``logits`` of the head."""
        head = op == "linear" and shape[0] == "logits"
        name = "logits" if head else f"t{len(self.launches)}"
        space = Space.OUTPUT if head else Space.TEMP
        self.buffers[name] = Buffer(name, space, "f32", shape, 0)
        kernel = f"cpu.{op}.{self._spec.layout}" if "layout" in attrs else f"cpu.{op}"
        if op == "linear":
            kernel = self._spec.linear_kernel
        self.launches.append(Launch(op, kernel, inputs, (name,), attrs))
        return name

    def linear(self, x: str, weight: str, rows: str, residual: str | None = None) -> str:
        """Record a linear; ``gate_up`` weights get the gated activation."""
        n, k = self._stored[weight].n, self._stored[weight].k
        n = -(-n // 16) * 16 if rows == "logits" else n
        gated = weight.endswith("gate_up")
        inputs = (x, self.weight(weight), *(() if residual is None else (residual,)))
        return self.launch(
            "linear", inputs, (rows, n // 2 if gated else n), n=n, k=k, layout=self._spec.layout,
            activation="silu_mul" if gated else "none", bias=False,
            residual=residual is not None,
            prompt_class=self._spec.prompt_class, generated_class=self._spec.generated_class,
        )  # fmt: skip


def record(spec: CoreSpec, stored: Mapping[str, Weight]) -> Recorder:
    """Record the model's program, offsets not placed."""
    r = Recorder(spec, stored)
    heads = {"heads": spec.heads, "kv_heads": spec.kv_heads, "head_dim": spec.head_dim}
    width = spec.heads * spec.head_dim

    def norm(x: str, weight: str, rows: str = "tokens") -> str:
        inputs = (x, r.weight(weight))
        return r.launch("rms_norm", inputs, (rows, spec.hidden), width=spec.hidden, eps=1e-5)

    x = r.launch(
        "embed", ("token_ids", r.weight("embed")), ("tokens", spec.hidden),
        vocab=spec.vocab_size, width=spec.hidden, layout=spec.layout,
    )  # fmt: skip
    for i in range(spec.layers):
        qkv = r.linear(norm(x, f"layers.{i}.norm1"), f"layers.{i}.qkv", "tokens")
        inputs = (qkv, r.weight("rope"), "positions", "slots", STATE)
        q = r.launch("rope_store_kv", inputs, ("tokens", width), **heads, layer=i)
        operands = (q, STATE, "positions", "seg_starts", "seq_lens", "block_tables")
        scale = spec.head_dim**-0.5
        y = r.launch("paged_attention", operands, ("tokens", width), **heads, layer=i, scale=scale)
        x = r.linear(y, f"layers.{i}.o", "tokens", residual=x)
        h = r.linear(norm(x, f"layers.{i}.norm2"), f"layers.{i}.gate_up", "tokens")
        x = r.linear(h, f"layers.{i}.down", "tokens", residual=x)
    rows = r.launch("gather_rows", (x, "logit_rows"), ("logits", spec.hidden), width=spec.hidden)
    r.linear(norm(rows, "norm", "logits"), "embed", "logits")
    return r


def place(
    name: str, domain: Domain, recorder: Recorder, launches: tuple[Launch, ...] | None = None
) -> Program:
    """Give every arena buffer its own bytes at the domain's capacity."""
    end = 0
    buffers = {}
    for buffer in recorder.buffers.values():
        placed = buffer
        if buffer.offset is not None:
            placed = replace(buffer, offset=end)
            end += -(-buffer_bytes(buffer, domain) // 64) * 64
        buffers[buffer.name] = placed
    return Program(name, domain, buffers, launches or tuple(recorder.launches), end)


def _domains(spec: CoreSpec) -> Iterator[tuple[str, Kind, Domain, int]]:
    for c in spec.decode:
        yield f"decode-{c}", Kind.DECODE, Domain(c, c, c), 1
    for t in spec.prefill:
        seqs = min(t, spec.max_num_seqs)
        yield f"prefill-{t}", Kind.PREFILL, Domain(t, seqs, t), 1
    for t in spec.mixed:
        yield f"mixed-{t}", Kind.MIXED, Domain(t, 2 * spec.max_num_seqs, t), 1
    q = spec.draft_tokens + 1
    for c in spec.verify:
        yield f"verify-{c}", Kind.VERIFY, Domain(c * q, c, c * q), q


def _tuning_key(spec: CoreSpec, rows: object) -> str:
    return f"linear/{spec.layout}/rows-{rows}"


def _graph(kind: Kind, max_q: int, program: Program, tuning: tuple[str, ...]) -> Graph:
    kernels = tuple(dict.fromkeys(launch.kernel for launch in program.launches))
    names = (b.name for b in program.buffers.values() if b.space is Space.WEIGHT)
    return Graph(
        id=program.name, kind=kind, family=FAMILY_OF_KIND[kind], domain=program.domain,
        program=program.name, kernels=kernels, tuning=tuning, layouts=tuple(names),
        workspace_bytes=program.arena_bytes, max_q=max_q,
        speculative="ngram" if kind is Kind.VERIFY else "off",
    )  # fmt: skip


def catalog(spec: CoreSpec, stored: Mapping[str, Weight]) -> Catalog:
    """Return graphs, kernels, tuning and programs (no storage table) of a spec.

    Every row count has a tuning record; all depend on ``.../rows-any``, which the first captured
    graph introduced: a mixed one, where the core has any.
    """
    recorder = record(spec, stored)
    domains = list(_domains(spec))
    launches = tuple(recorder.launches)
    programs = {name: place(name, domain, recorder, launches) for name, _, domain, _ in domains}
    graphs = tuple(
        _graph(kind, max_q, programs[name], (_tuning_key(spec, domain.tokens),))
        for name, kind, domain, max_q in domains
    )
    kernels = {launch.kernel: launch.op for launch in launches}
    entries = tuple(_kernel(spec, kernel, op) for kernel, op in kernels.items())
    return Catalog(graphs, entries, _tuning(spec, domains), (), programs)


def _kernel(spec: CoreSpec, kernel: str, op: str) -> Kernel:
    linear = op == "linear"
    classes = (spec.prompt_class, spec.generated_class) if linear else (None, None)
    return Kernel(kernel, op, kernel.removeprefix("cpu."), "cpu", {}, (), *classes)


def _tuning(
    spec: CoreSpec, domains: list[tuple[str, Kind, Domain, int]]
) -> tuple[TuningRecord, ...]:
    first: dict[int, str] = {}
    for name, _, domain, _ in sorted(domains, key=lambda entry: entry[1] is not Kind.MIXED):
        first.setdefault(domain.tokens, name)
    kernel = spec.linear_kernel
    base = _tuning_key(spec, "any")
    candidates = (Candidate(kernel),)
    records = [TuningRecord(base, candidates, kernel, "fast", (), next(iter(first.values())))]
    for tokens, name in sorted(first.items()):
        key = _tuning_key(spec, tokens)
        records.append(TuningRecord(key, candidates, kernel, "fast", (base,), name))
    return tuple(records)


def layout_of(spec: CoreSpec, weight: Weight) -> str:
    """Return the storage layout of a weight."""
    return spec.layout if weight.n else "plain"


def write_core(
    output: Path,
    spec: CoreSpec | None = None,
    text: Mapping[str, bytes] | None = None,
    overwrite: bool = False,
    step_times: Sequence[StepTime] = (),
) -> Path:
    """Write a synthetic core to ``output`` with some text files and return its path.

    step_times: measured on the machine ``MACHINE``.
    """
    spec = spec or CoreSpec()
    stored = weights(spec)
    parts = catalog(spec, stored)
    with CoreWriter(output, overwrite) as writer:
        for name, weight in stored.items():
            layout = layout_of(spec, weight)
            writer.add_tensor(0, name, name, layout, weight.array, weight.n, weight.k)
        for name, data in (text or {"tokenizer.json": b"{}"}).items():
            writer.add_text(name, data)
        return writer.finish(
            identity(), spec.model(), spec.limits(), spec.default_mixed, parts.graphs,
            parts.kernels, parts.tuning, parts.programs,
            [MACHINE] if step_times else [], step_times,
        )  # fmt: skip


def storage_table(
    spec: CoreSpec, stored: Mapping[str, Weight]
) -> tuple[tuple[StorageTensor, ...], int]:
    """Return the storage table as a writer would make it, and the file's size."""
    end = RESERVED
    table = []
    for name, weight in stored.items():
        array = weight.array
        table.append(
            StorageTensor(
                name, 0, name, layout_of(spec, weight), DTYPE_NAMES[array.dtype], array.shape,
                weight.n, weight.k, storage_path(0), end, array.nbytes, "0" * 64,
            )
        )  # fmt: skip
        end += align(array.nbytes)
    return tuple(table), end


def manifest(spec: CoreSpec | None = None) -> Manifest:
    """Return a valid manifest with programs and a storage table, without writing a core."""
    spec = spec or CoreSpec()
    stored = weights(spec)
    storage, size = storage_table(spec, stored)
    parts = replace(catalog(spec, stored), storage=storage)
    files = ((storage_path(0), size), (PROGRAMS, 1), ("text/tokenizer.json", 2))
    sections = tuple(Section(path, size, "0" * 64) for path, size in files)
    return Manifest(
        FORMAT_VERSION, identity(), spec.model(), spec.limits(), spec.default_mixed, parts,
        sections, "0" * 64,
    )  # fmt: skip


def with_catalog(base: Manifest, **changes: object) -> Manifest:
    """Return a manifest with some tables of its catalog replaced."""
    return replace(base, catalog=replace(base.catalog, **changes))  # type: ignore[arg-type]
