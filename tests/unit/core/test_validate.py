"""Validation: a valid catalog passes, and each fault has its own error."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import fields, replace

from engine.core import errors
from engine.core.schema import (
    Canary,
    Candidate,
    Family,
    Graph,
    Kernel,
    Machine,
    Manifest,
    Section,
    StepTime,
)
from engine.core.validate import validate
from engine.errors import CoreError
from engine.ir.program import Domain, Launch
from engine.ir.verify import ProgramInvalidError
from tests.support.cores import CoreSpec, identity, manifest, with_catalog

SPEC = CoreSpec(verify=(2,))
MACHINE = Machine("here", "Some CPU", 2, "avx2", 1_700_000_000)
TIME = StepTime("mixed-32", 20, 4, 64, 0.02, 0.019, 0.022, 7, "here")
CANARY = Canary("decode-2", 1, 2, "a" * 64, (5, 89))
BASE = with_catalog(manifest(SPEC), machines=(MACHINE,), step_times=(TIME,), canaries=(CANARY,))
Change = Callable[[Manifest], Manifest]


def table(name: str, index: int, /, **changes: Any) -> Change:
    """Change one entry of a catalog table."""

    def change(m: Manifest) -> Manifest:
        entries = list(getattr(m.catalog, name))
        entries[index] = replace(entries[index], **changes)
        return with_catalog(m, **{name: tuple(entries)})

    return change


def graph(graph_id: str, /, **changes: Any) -> Change:
    index = next(i for i, g in enumerate(BASE.catalog.graphs) if g.id == graph_id)
    return table("graphs", index, **changes)


def tensor(name: str, /, **changes: Any) -> Change:
    index = next(i for i, t in enumerate(BASE.catalog.storage) if t.name == name)
    return table("storage", index, **changes)


def repeated(name: str) -> Change:
    def change(m: Manifest) -> Manifest:
        entries = getattr(m.catalog, name)
        return with_catalog(m, **{name: (*entries, entries[0])})

    return change


def without(name: str, index: int = 0) -> Change:
    def change(m: Manifest) -> Manifest:
        entries = list(getattr(m.catalog, name))
        del entries[index]
        return with_catalog(m, **{name: tuple(entries)})

    return change


def without_graphs(kind: str) -> Change:
    def change(m: Manifest) -> Manifest:
        graphs = tuple(g for g in m.catalog.graphs if g.kind != kind)
        names = {g.program for g in graphs}
        programs = {name: p for name, p in m.catalog.programs.items() if name in names}
        ids = {g.id for g in graphs}
        tuning = tuple(
            replace(r, introduced_by=r.introduced_by if r.introduced_by in ids else None)
            for r in m.catalog.tuning
        )
        return with_catalog(m, graphs=graphs, programs=programs, tuning=tuning)

    return change


def launches(edit: Callable[[Launch], Launch], only: str | None = None) -> Change:
    """Edit every launch, of all programs or of one."""

    def change(m: Manifest) -> Manifest:
        edited: dict[int, tuple[Launch, ...]] = {}
        programs = {}
        for name, p in m.catalog.programs.items():
            if only is None:
                shared = edited.setdefault(id(p.launches), tuple(edit(e) for e in p.launches))
            else:
                shared = tuple(edit(e) for e in p.launches) if name == only else p.launches
            programs[name] = replace(p, launches=shared)
        return with_catalog(m, programs=programs)

    return change


def attr(op: str, only: str | None = None, /, **changes: Any) -> Change:
    return launches(lambda e: replace(e, attrs={**e.attrs, **changes}) if e.op == op else e, only)


def model(**changes: Any) -> Change:
    return lambda m: replace(m, model=replace(m.model, **changes))


def limits(**changes: Any) -> Change:
    return lambda m: replace(m, limits=replace(m.limits, **changes))


def sections(edit: Callable[[tuple[Section, ...]], tuple[Section, ...]]) -> Change:
    return lambda m: replace(m, sections=edit(m.sections))


def cycle(m: Manifest) -> Manifest:
    first, second, third, *rest = m.catalog.tuning
    return with_catalog(
        m,
        tuning=(
            replace(first, depends_on=(third.key,)),
            replace(second, depends_on=(first.key,)),
            replace(third, depends_on=(second.key,)),
            *rest,
        ),
    )


def two_ranks(m: Manifest, edit: Callable[[Any], Any] = lambda t: t) -> Manifest:
    other = tuple(
        edit(replace(t, rank=1, file="storage/rank1.safetensors")) for t in m.catalog.storage
    )
    size = next(s.size for s in m.sections if s.path == "storage/rank0.safetensors")
    section = Section("storage/rank1.safetensors", size, "0" * 64)
    m = replace(m, identity=identity(tensor_parallel_size=2), sections=(*m.sections, section))
    return with_catalog(m, storage=(*m.catalog.storage, *other))


def kernel(op: str, /, **changes: Any) -> Change:
    index = next(i for i, k in enumerate(BASE.catalog.kernels) if k.op == op)
    return table("kernels", index, **changes)


def step_time(**changes: Any) -> Change:
    return table("step_times", 0, **changes)


def canary(**changes: Any) -> Change:
    return table("canaries", 0, **changes)


def candidate(**changes: Any) -> Change:
    only = BASE.catalog.tuning[0].candidates[0]
    return table("tuning", 0, candidates=(replace(only, **changes),))


CASES: dict[str, tuple[Change, type[CoreError], str]] = {
    "graph twice": (repeated("graphs"), errors.DuplicateIdError, "graphs: 'decode-1' is there 2"),
    "kernel twice": (repeated("kernels"), errors.DuplicateIdError, "kernels: "),
    "tuning twice": (repeated("tuning"), errors.DuplicateIdError, "tuning: "),
    "tensor twice": (repeated("storage"), errors.DuplicateIdError, "storage: 'rank 0: embed'"),
    "section twice": (
        sections(lambda s: (*s, s[0])), errors.DuplicateIdError, "sections: 'storage/rank0",
    ),
    "mixed graph stored as separate": (
        graph("mixed-8", family=Family.SEPARATE), errors.FamilyMismatchError,
        "graphs.mixed-8.family: a mixed graph is mixed, found separate",
    ),
    "decode graph stored as mixed": (
        graph("decode-1", family=Family.MIXED), errors.FamilyMismatchError, "found mixed",
    ),
    "graph of another device": (
        graph("decode-1", device="cuda"), errors.FamilyMismatchError, "expected cpu, found cuda",
    ),
    "verify without a method": (
        graph("verify-2", speculative="off"), errors.FamilyMismatchError, "needs a method",
    ),
    "decode of several rows": (
        graph("decode-1", max_q=2), errors.FamilyMismatchError, "graphs.decode-1.max_q",
    ),
    "verify of one row": (
        graph("verify-2", max_q=1), errors.FamilyMismatchError, "expected 2 to 8 for a verify",
    ),
    "verify of more rows than it takes": (
        graph("verify-2", max_q=9), errors.FamilyMismatchError, "verify-2.max_q",
    ),
    "prefill of decode rows": (
        graph("prefill-8", max_q=2), errors.FamilyMismatchError, "expected 1 for a prefill graph",
    ),
    "mixed rows without a method": (
        graph("mixed-8", max_q=2), errors.FamilyMismatchError, "mixed-8.max_q: expected 1 for",
    ),
    "decode for a method": (
        graph("decode-1", speculative="ngram"), errors.FamilyMismatchError, "expected off",
    ),
    "kernel of no operation": (
        kernel("embed", op="fft"), errors.KernelInvalidError, ".op: expected one of embed",
    ),
    "variant of another operation": (
        kernel("embed", variant="rms_norm"), errors.KernelInvalidError, "expected embed or embed.",
    ),
    "variant that is not the id's": (
        kernel("rms_norm", variant="rms_norm.fast"), errors.KernelInvalidError,
        "expected the id cpu.rms_norm.fast",
    ),
    "parameters that are not the id's": (
        kernel("rms_norm", parameters={"rows": 4}), errors.KernelInvalidError,
        "expected the id cpu.rms_norm@rows=4",
    ),
    "kernel of an unknown layout": (
        kernel("embed", parameters={"layout": "q9"}), errors.KernelInvalidError, "meters.layout",
    ),
    "unknown instruction set": (
        kernel("embed", requires=("sse9",)), errors.TargetUnknownError,
        "requires: expected portable, avx2, avx512, amx, neon, found 'sse9'",
    ),
    "unknown target": (
        lambda m: replace(m, identity=identity(target=("avx1024",))), errors.TargetUnknownError,
        "identity.target: expected portable, .* found 'avx1024'",
    ),
    "machine twice": (repeated("machines"), errors.DuplicateIdError, "machines: 'here' is there 2"),
    "point twice": (repeated("step_times"), errors.DuplicateIdError, "step_times: 'mixed-32 20"),
    "canary twice": (repeated("canaries"), errors.DuplicateIdError, "canaries: 'decode-2'"),
    "time of no graph": (
        step_time(graph="none"), errors.DanglingReferenceError, r"step_times\[0\].graph: 'none'",
    ),
    "time on no machine": (
        step_time(machine="none"), errors.DanglingReferenceError, "machine: 'none'",
    ),
    "time of too many rows": (
        step_time(tokens=33), errors.MeasurementInvalidError, "tokens: expected 1 to 32, found 33",
    ),
    "time of decode rows in prefill": (
        step_time(graph="prefill-32"), errors.MeasurementInvalidError, "generated: expected rows",
    ),
    "time of too many sequences": (
        step_time(generated=8), errors.MeasurementInvalidError, "generated: expected 8 sequences",
    ),
    "time of a chunk beyond its context": (
        step_time(context=15), errors.MeasurementInvalidError, "context: expected up to 256",
    ),
    "time outside its interval": (
        step_time(seconds=0.018), errors.MeasurementInvalidError, "0 < low <= seconds <= high",
    ),
    "time without samples": (
        step_time(samples=0), errors.MeasurementInvalidError, "samples: expected 1 or more",
    ),
    "canary of no graph": (
        canary(graph="none"), errors.DanglingReferenceError, "canaries.none.graph",
    ),
    "canary of too many rows": (
        canary(rows=3), errors.MeasurementInvalidError, "rows: expected 1 to 2, found 3",
    ),
    "canary of another seed": (
        lambda m: with_catalog(
            m, canaries=(CANARY, replace(CANARY, graph="decode-4", seed=2))
        ),
        errors.MeasurementInvalidError, "canaries.decode-4.seed: expected 1, found 2",
    ),
    "canary's digest": (
        canary(digest="A" * 64), errors.MeasurementInvalidError, "digest: expected 64 hexadecimal",
    ),
    "canary's seed": (canary(seed=-1), errors.MeasurementInvalidError, "seed: expected 0 to"),
    "canary's ids": (canary(argmax=(5,)), errors.MeasurementInvalidError, "expected 2 token ids"),
    "canary's vocabulary": (
        canary(argmax=(5, 90)), errors.MeasurementInvalidError, "expected ids below 90",
    ),
    "sample of no time": (
        candidate(samples=(0.0,)), errors.MeasurementInvalidError, "samples: expected more than 0",
    ),
    "half an interval": (
        candidate(low=0.1), errors.MeasurementInvalidError, "low: expected an interval",
    ),
    "interval upside down": (
        candidate(low=0.2, high=0.1), errors.MeasurementInvalidError, "found 0.2 to 0.1",
    ),
    "program missing": (
        graph("decode-1", program="none"), errors.ProgramMissingError, "'none' is not in the core",
    ),
    "program unused": (
        lambda m: with_catalog(
            m, programs={**m.catalog.programs, "spare": m.catalog.programs["decode-1"]}
        ),
        errors.DanglingReferenceError, "programs.spare: no graph names",
    ),
    "graph's kernel missing": (
        graph("decode-1", kernels=("none",)), errors.KernelMissingError, "graphs.decode-1.kernels",
    ),
    "catalog without a kernel": (without("kernels"), errors.KernelMissingError, "cpu.embed"),
    "graph's tuning missing": (
        graph("decode-1", tuning=("none",)), errors.TuningMissingError, "graphs.decode-1.tuning",
    ),
    "graph's layout missing": (
        graph("decode-1", layouts=("none",)), errors.LayoutMissingError, "graphs.decode-1.layouts",
    ),
    "storage without a tensor": (without("storage"), errors.LayoutMissingError, "'embed'"),
    "tuning dependency missing": (
        table("tuning", 0, depends_on=("none",)), errors.TuningMissingError, "depends_on: 'none'",
    ),
    "candidate missing": (
        table("tuning", 0, candidates=(Candidate("none"),)), errors.KernelMissingError,
        "candidates: 'none'",
    ),
    "winner no candidate": (
        table("tuning", 0, winner="cpu.rms_norm"), errors.KernelMissingError, "winner",
    ),
    "introduced by nobody": (
        table("tuning", 0, introduced_by="none"), errors.DanglingReferenceError, "introduced_by",
    ),
    "cycle": (cycle, errors.DependencyCycleError, " -> .* -> .* -> "),
    "self cycle": (
        table("tuning", 0, depends_on=(BASE.catalog.tuning[0].key,)),
        errors.DependencyCycleError, "rows-any -> .*rows-any",
    ),
    "no decode graphs": (
        without_graphs("decode"), errors.CapacityGapError, "1 to 4 sequences, the largest takes 0",
    ),
    "decode too small": (
        limits(max_num_seqs=5), errors.CapacityGapError, "1 to 5 sequences, the largest takes 4",
    ),
    "no prefill graphs": (
        without_graphs("prefill"), errors.CapacityGapError, "1 to 32 tokens, the largest takes 0",
    ),
    "prefill too small": (
        limits(max_step_tokens=64), errors.CapacityGapError, "1 to 64 tokens, the largest takes 32",
    ),
    "context": (
        limits(max_model_len=512), errors.ModelInvalidError, "context length 256, found 512",
    ),
    "no sequences": (limits(max_num_seqs=0), errors.ModelInvalidError, "limits.max_num_seqs"),
    "heads": (model(heads=3), errors.ModelInvalidError, "a multiple of 2 kv_heads, found 3"),
    "no vocabulary": (model(vocab_size=0), errors.ModelInvalidError, "model.vocab_size"),
    "narrow head": (model(logits_width=80), errors.ModelInvalidError, "model.logits_width"),
    "end token": (model(eos_token_ids=(90,)), errors.ModelInvalidError, "below 90, found 90"),
    "cache of fewer layers": (
        lambda m: replace(m, model=replace(m.model, kv=replace(m.model.kv, layers=1))),
        errors.ModelInvalidError, "model.kv.layers",
    ),
    "invalid program": (attr("rms_norm", width=32), ProgramInvalidError, r"launch 1 \(rms_norm\)"),
    "domain differs": (
        graph("decode-1", domain=Domain(2, 1, 1)), ProgramInvalidError, "graphs.decode-1.domain",
    ),
    "kernels differ": (
        graph("decode-1", kernels=("cpu.rms_norm",)), ProgramInvalidError,
        "graphs.decode-1.kernels: its program has also",
    ),
    "layouts differ": (
        graph("decode-1", layouts=("embed",)), ProgramInvalidError, "graphs.decode-1.layouts",
    ),
    "workspace too small": (
        graph("decode-1", workspace_bytes=64), ProgramInvalidError, "found 64",
    ),
    "launch's kernel missing": (
        launches(lambda e: replace(e, kernel="none") if e.op == "embed" else e),
        ProgramInvalidError, "kernel 'none' is not in the catalog",
    ),
    "kernel of another op": (
        launches(lambda e: replace(e, kernel="cpu.rms_norm") if e.op == "embed" else e),
        ProgramInvalidError, "computes rms_norm on cpu, expected embed",
    ),
    "layer beyond the cache": (
        lambda m: replace(m, model=replace(m.model, layers=1, kv=replace(m.model.kv, layers=1))),
        ProgramInvalidError, "expected a layer below 1, found 1",
    ),
    "heads beyond the cache": (
        lambda m: replace(m, model=replace(m.model, kv=replace(m.model.kv, kv_heads=1))),
        errors.ModelInvalidError, "model.kv.kv_heads: expected model.kv_heads 2, found 1",
    ),
    "heads of another model": (
        model(heads=8), ProgramInvalidError, r"launch \d+ \(rope_store_kv\): heads: expected 8, fo",
    ),
    "ids without an embedding": (
        model(vocab_size=96), ProgramInvalidError, "vocab: expected at least 96, found 90",
    ),
    "positions without an angle": (
        lambda m: limits(max_model_len=257)(model(context_length=512)(m)),
        ProgramInvalidError, "positions of rope: expected at least 257, found 256",
    ),
    "output of another width": (
        model(logits_width=112), ProgramInvalidError, r"one output f32 \[logits, 112\], found",
    ),
    "many ranks": (
        lambda m: replace(m, identity=identity(tensor_parallel_size=2**62)),
        errors.RankMismatchError, "ranks, found .* 1$",
    ),
    "weight of another shape": (
        tensor("norm", shape=(32, 2)), ProgramInvalidError, r"stored is F32 \[32, 2\]",
    ),
    "weight of another size": (
        tensor("layers.0.qkv", n=64, k=128), ProgramInvalidError, r"expected bf16p16 \[128, 64\]",
    ),
    "class of another layout": (
        attr("linear", "decode-1", prompt_class="bf16_t32", generated_class="int8_g32"),
        ProgramInvalidError, "no kernel computes int8_g32 on bf16p16",
    ),
    "class of a later writer": (
        attr("linear", generated_class="int16_g32"), ProgramInvalidError,
        "generated_class: expected one of .*int12_g32.*, found 'int16_g32'",
    ),
    "kernel of another class": (
        lambda m: with_catalog(
            m,
            kernels=tuple(
                replace(k, prompt_class="int8_g32") if k.op == "linear" else k
                for k in m.catalog.kernels
            ),
        ),
        errors.NumericsConflictError, "prompt_class bf16_t32, its kernel .* has int8_g32",
    ),
    "tensor in another file": (
        tensor("norm", file="storage/rank1.safetensors"), errors.StorageInvalidError, "norm.file",
    ),
    "unknown dtype": (tensor("norm", dtype="F8"), errors.StorageInvalidError, "norm.dtype"),
    "size and shape differ": (
        tensor("norm", shape=(65,)), errors.StorageInvalidError, "expected 260 bytes, found 256",
    ),
    "negative shape": (tensor("norm", shape=(-64,)), errors.StorageInvalidError, "found -64"),
    "offset not aligned": (tensor("norm", offset=65537), errors.StorageInvalidError, "norm.offset"),
    "negative offset": (tensor("norm", offset=-64), errors.StorageInvalidError, "norm.offset"),
    "beyond the file": (tensor("norm", offset=1 << 30), errors.StorageInvalidError, "within"),
    "overlap": (tensor("norm", offset=65536), errors.StorageInvalidError, "overlaps"),
    "unknown layout": (tensor("norm", layout="q9"), errors.StorageInvalidError, "norm.layout"),
    "sizes on a plain tensor": (tensor("norm", n=64), errors.StorageInvalidError, "norm: expected"),
    "packed without sizes": (tensor("embed", n=0), errors.StorageInvalidError, "embed: expected"),
    "packed of other sizes": (
        tensor("embed", n=200), errors.StorageInvalidError, r"bf16p16 \[200, 64\]",
    ),
    "no programs section": (
        sections(lambda s: tuple(x for x in s if x.path != "programs.json")),
        errors.CoreFileError, "expected programs.json",
    ),
    "foreign section": (
        sections(lambda s: (*s, Section("bin/run.sh", 1, "0" * 64))), errors.CoreFileError,
        "'bin/run.sh' is no part of a core",
    ),
    "rank without tensors": (
        lambda m: replace(m, identity=identity(tensor_parallel_size=2)), errors.RankMismatchError,
        "expected 2 ranks, found no tensor of 1",
    ),
    "rank beyond the size": (
        lambda m: replace(two_ranks(m), identity=identity()), errors.RankMismatchError,
        "expected below 1, found 1",
    ),
    "ranks of other layouts": (
        lambda m: two_ranks(
            m, lambda t: replace(t, weight="other") if t.name == "layers.1.o" else t
        ),
        errors.RankMismatchError, "rank 1 and rank 0 differ in layers.1.o",
    ),
    "no ranks": (
        lambda m: replace(m, identity=identity(tensor_parallel_size=0)), errors.RankMismatchError,
        "expected 1 or more, found 0",
    ),
}  # fmt: skip


def test_valid_catalogs_pass() -> None:
    validate(BASE)
    validate(candidate(samples=(0.1, 0.2), low=0.1, high=0.2, checked="reference")(BASE))
    tuned = Kernel(
        "cpu.rms_norm@grain=4,rows=2",
        "rms_norm",
        "rms_norm",
        "cpu",
        {"rows": 2, "grain": 4},
        ("amx",),
    )
    validate(with_catalog(BASE, kernels=(*BASE.catalog.kernels, tuned)))
    validate(replace(BASE, identity=identity(target=("portable", "avx512"))))
    validate(manifest(CoreSpec(mixed=(), default_mixed=False)))
    validate(two_ranks(BASE))
    for layout in ("q4p16", "q8p16"):
        validate(manifest(CoreSpec(layout=layout)))


@pytest.mark.parametrize("name", CASES)
def test_each_fault_has_its_error(name: str) -> None:
    change, error, message = CASES[name]
    with pytest.raises(CoreError, match=message) as caught:
        validate(change(BASE))
    assert type(caught.value) is error, caught.value
    assert caught.value.exit_code == 3


def test_one_class_per_weight_and_role_over_all_graphs() -> None:
    """A program with other classes is a fault, even when its own kernel agrees."""
    base = manifest(CoreSpec(layout="q8p16"))
    kernel = next(k for k in base.catalog.kernels if k.op == "linear")
    variant = "linear.q8p16.bf16_t32"
    other = replace(kernel, id=f"cpu.{variant}", variant=variant, generated_class="bf16_t32")
    base = with_catalog(base, kernels=(*base.catalog.kernels, other))

    def edit(e: Launch) -> Launch:
        if e.op != "linear":
            return e
        return replace(e, kernel=other.id, attrs={**e.attrs, "generated_class": "bf16_t32"})

    changed = launches(edit, "mixed-8")(base)
    graphs = tuple(_with_kernel(g, kernel.id, other.id) for g in changed.catalog.graphs)
    changed = with_catalog(changed, graphs=graphs)
    with pytest.raises(errors.NumericsConflictError, match="generated class") as caught:
        validate(changed)
    assert "mixed-8" in str(caught.value)


def _with_kernel(g: Graph, old: str, new: str) -> Graph:
    if g.id != "mixed-8":
        return g
    return replace(g, kernels=tuple(new if k == old else k for k in g.kernels))


def test_validation_changes_nothing() -> None:
    before = {f.name: getattr(BASE, f.name) for f in fields(BASE)}
    validate(BASE)
    assert before == {f.name: getattr(BASE, f.name) for f in fields(BASE)}
