"""What a core holds, as frozen types. ``codec`` turns them into JSON and back.

A core is a directory: ``core.json`` (the manifest: identity, model, catalog without programs,
storage table, default selection, and a section table with size and digest of every other file),
``programs.json``, ``storage/rank0.safetensors`` ..., ``text/*``. A file that the section table
does not list has no meaning and is ignored.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Literal

from msgspec import Struct, field

from engine.ir.program import Domain, Program
from engine.types import Speculative

DeviceName = Literal["cpu", "cuda"]
Tuning = Literal["fast", "balanced", "audit"]
"""How much was measured before kernels were chosen."""
FORMAT_VERSION = 2
"""Version written by this exporter."""
READABLE_VERSIONS = (FORMAT_VERSION - 1, FORMAT_VERSION)
"""Oldest and newest format version that this reader takes; ``upgrade`` bridges them."""


class Kind(StrEnum):
    """What rows a graph's launches carry."""

    PREFILL = "prefill"  # prompt chunks (and recomputation after a preemption)
    DECODE = "decode"  # generated rows: one per sequence, and its n-gram drafts
    VERIFY = "verify"  # a generated row and draft tokens per sequence
    DRAFT = "draft"  # MTP proposals
    MIXED = "mixed"  # decode rows and prefill chunks in one launch


class Family(StrEnum):
    """The graph family, a stored tag, never inferred from shapes."""

    SEPARATE = "separate"
    MIXED = "mixed"


FAMILY_OF_KIND: dict[Kind, Family] = {
    Kind.PREFILL: Family.SEPARATE,
    Kind.DECODE: Family.SEPARATE,
    Kind.VERIFY: Family.SEPARATE,
    Kind.DRAFT: Family.SEPARATE,
    Kind.MIXED: Family.MIXED,
}


class Graph(Struct, frozen=True):
    """A catalog entry. ``program`` names a program; the other tuples name catalog entries.

    domain: capacity (tokens, segments, logits rows). max_q: rows per decode-side sequence (1, or
    1 + draft tokens for verify). speculative: the method this graph needs ("off" for none).
    reason: why there is a graph of this capacity, for people.
    """

    id: str
    kind: Kind
    family: Family
    domain: Domain
    program: str
    kernels: tuple[str, ...]
    tuning: tuple[str, ...]
    layouts: tuple[str, ...]  # storage tensor names
    workspace_bytes: int
    device: DeviceName = "cpu"
    max_q: int = 1
    speculative: Speculative = "off"
    reason: str = ""


class Kernel(Struct, frozen=True):
    """A kernel of the catalog: ``id`` is made of device, variant and parameters (``targets``).

    parameters: ``layout`` of its weight, and numbers that tune it without changing a bit.
    requires: instruction sets, all needed (empty: any).
    """

    id: str
    op: str
    variant: str
    device: DeviceName
    parameters: Mapping[str, int | str] = field(default_factory=dict)
    requires: tuple[str, ...] = ()
    prompt_class: str | None = None
    generated_class: str | None = None


class Candidate(Struct, frozen=True):
    """One tuned candidate: kernel id and measured seconds (none for heuristics).

    low, high: the 95 % interval of the samples' median, in seconds. checked: what it was checked
    against, if it was. refused: why it could not win.
    """

    kernel: str
    samples: tuple[float, ...] = ()
    low: float | None = None
    high: float | None = None
    checked: str | None = None
    refused: str | None = None


class TuningRecord(Struct, frozen=True):
    """Why a kernel was chosen for (op, shape, format, rows). ``depends_on``: other keys.

    ``introduced_by``: the graph whose capture asked first; informative, pruning ignores it.
    ``reason``: the decision in words.
    """

    key: str
    candidates: tuple[Candidate, ...]
    winner: str
    profile: Tuning
    depends_on: tuple[str, ...] = ()
    introduced_by: str | None = None
    reason: str = ""


class Machine(Struct, frozen=True):
    """A machine that something was measured on. ``measured``: Unix seconds.

    isa: the instruction-set path, or compute capability, that ran.
    """

    id: str
    processor: str
    threads: int
    isa: str
    measured: int


class StepTime(Struct, frozen=True):
    """How long one replay of a graph took: the median of ``samples`` replays, in seconds.

    tokens: rows, ``generated`` of them one each of a sequence that decodes; the others are one
    prompt chunk. context: keys that the last row of every sequence sees. low, high: the 95 %
    interval of the median.
    """

    graph: str
    tokens: int
    generated: int
    context: int
    seconds: float
    low: float
    high: float
    samples: int
    machine: str


class Canary(Struct, frozen=True):
    """What a graph computes on inputs that ``seed`` decides (docs/core-format.md, "Canaries").

    rows: logits rows. digest: SHA-256 of their bits, hex. argmax: each row's largest logit, for
    people.
    """

    graph: str
    seed: int
    rows: int
    digest: str
    argmax: tuple[int, ...]


class StorageTensor(Struct, frozen=True):
    """One stored tensor of one rank. layout: "plain" or a packed layout (kernels/layouts.py).

    dtype is safetensors' name ("F32", "U8" ...); shape is the stored shape; n, k: logical weight
    sizes for packed layouts (0 for plain). offset and size are bytes in ``file``; the offset is a
    multiple of 64. digest: sha256 of the tensor's bytes, hex. weight: name of the logical weight
    (several layouts may hold the same weight).
    """

    name: str
    rank: int
    weight: str
    layout: str
    dtype: str
    shape: tuple[int, ...]
    n: int
    k: int
    file: str
    offset: int
    size: int
    digest: str


class Section(Struct, frozen=True):
    """A file of the core: path relative to the core, bytes, digest in hex.

    The digest is the file's sha256; above 4 MiB, that of its pieces' (``digests.combine``).
    """

    path: str
    size: int
    digest: str


class KVLayout(Struct, frozen=True):
    """The paged cache. One block holds ``block_size`` tokens of one layer, all KV heads.

    Bytes of state: ``[layer][block][kv_head][K | V]``; with d = head_dim rounded up to 32, K is
    bf16 ``[d / 2][block_size][2]`` (pairs of dimensions) and V is bf16 ``[block_size / 2][d][2]``
    (pairs of tokens): both are AMX B tiles as they lie (Intel SDM volume 2, TDPBF16PS).
    """

    layers: int
    kv_heads: int
    head_dim: int
    block_size: int = 64
    dtype: Literal["bf16"] = "bf16"

    @property
    def padded_dim(self) -> int:
        return -(-self.head_dim // 32) * 32

    @property
    def block_bytes(self) -> int:
        """Bytes of one block in one layer."""
        return self.kv_heads * 2 * self.padded_dim * self.block_size * 2

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block in all layers."""
        return self.layers * self.block_bytes


class ModelSpec(Struct, frozen=True):
    """The model's architecture and sizes. vocab_size: ids the tokenizer knows (sampling limit);
    logits_width: stored rows of the head, padded to the panel."""

    id: str
    architecture: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    logits_width: int
    context_length: int
    rms_eps: float
    rope_theta: float
    tied_head: bool
    quantization: str
    eos_token_ids: tuple[int, ...]
    kv: KVLayout
    attention_bias: bool = False
    mtp_depth: int = 0


class Limits(Struct, frozen=True):
    """What the core was exported for; a run may go only downwards."""

    max_num_seqs: int
    max_model_len: int
    max_step_tokens: int


class Identity(Struct, frozen=True):
    """Where the core comes from and what it targets."""

    flare_version: str
    source: str
    source_digest: str
    device: DeviceName
    target: tuple[str, ...]  # instruction sets or compute capability it was tuned for
    tensor_parallel_size: int
    tuning: Tuning
    created: int  # Unix seconds
    settings: Mapping[str, str | int | float | bool | None] = field(default_factory=dict)


class Catalog(Struct, frozen=True):
    """All graphs of a core and what they refer to. Tuples keep the order of export."""

    graphs: tuple[Graph, ...]
    kernels: tuple[Kernel, ...]
    tuning: tuple[TuningRecord, ...]
    storage: tuple[StorageTensor, ...]
    programs: Mapping[str, Program]
    machines: tuple[Machine, ...] = ()
    step_times: tuple[StepTime, ...] = ()
    canaries: tuple[Canary, ...] = ()


class Manifest(Struct, frozen=True):
    """The whole core but for the bytes of its files.

    default_mixed: what "neither flag" means.
    """

    format_version: int
    identity: Identity
    model: ModelSpec
    limits: Limits
    default_mixed: bool
    catalog: Catalog
    sections: tuple[Section, ...]
    root_digest: str
