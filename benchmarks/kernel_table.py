"""Kernels of a real core against the machine's ceilings: GB/s and GFLOP/s, op by op.

python -m benchmarks.kernel_table CORE [--threads 2] [--repeats 20] [--output FILE.md]

Each line replays all launches of one op and shape of a captured program (30 layers: 30 launches
with their own weights), so weights stream as in serving. Ceilings are measured by
benchmarks/kernels/ceilings.cpp, compiled here.
"""

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from app.bench.machine import machine
from benchmarks.serving.report import rows_of
from engine.core.reader import Core, open_core
from engine.core.schema import Graph, Kind
from engine.device.base import BatchShape, Executable, capacity_of
from engine.device.cpu.device import CpuDevice
from engine.ir.program import Launch, Program

PROTOTYPE = {
    "linears, generated, 1": "2.0-2.6 ms",
    "linears, generated, 8": "3.6-4.8 ms",
    "linears, generated, 16": "6.1-7.8 ms",
    "linears, generated, 32": "13.8-14.2 ms",
    "linears, prompt, 512": "2,100-2,500 GFLOP/s",
    "attention, generated, 1": "8-9 us a layer",
    "attention, generated, 8": "91-111 us a layer",
    "attention, generated, 32": "385-527 us a layer",
    "attention, prompt, 2048": "5.4-6.4 ms a layer, 755-899 GFLOP/s",
}
"""What an earlier prototype reached on a two-core Xeon with AMX (head included up to 32 rows)."""

CONTEXT = 512  # cached tokens of a decoding sequence
ROLES = {Kind.DECODE: "generated", Kind.PREFILL: "prompt"}


@dataclass(frozen=True, slots=True)
class Timing:
    """One line: the best and the median of the repeats, in seconds, for all ``launches``."""

    what: str
    role: str
    rows: int
    launches: int
    best_s: float
    median_s: float
    bytes: float
    flops: float

    @property
    def key(self) -> str:
        """How PROTOTYPE calls it."""
        return f"{self.what}, {self.role}, {self.rows}"


class Bench:
    """One device over a core's programs, with the rows of a batch laid into its inputs."""

    def __init__(self, core: Core, threads: int, repeats: int) -> None:
        catalog = core.manifest.catalog
        self._model = core.manifest.model
        self._core = core
        self._repeats = repeats
        self._blocks = 64 * -(-2 * CONTEXT // self._model.kv.block_size)
        self._device = CpuDevice(
            self._model,
            capacity_of(catalog.graphs),
            {tensor.name: core.tensor(tensor.name) for tensor in catalog.storage},
            workspace_bytes=max(graph.workspace_bytes for graph in catalog.graphs),
            num_blocks=self._blocks,
            max_blocks=64,
            sampler_slots=1,
            threads=threads,
        )

    def graph(self, kind: Kind, rows: int) -> Graph:
        """The smallest graph of a kind that takes ``rows`` tokens."""
        graphs = [g for g in self._core.manifest.catalog.graphs if g.kind is kind]
        return min((g for g in graphs if g.domain.tokens >= rows), key=lambda g: g.domain.tokens)

    def program(self, graph: Graph) -> Program:
        """The graph's program."""
        return self._core.manifest.catalog.programs[graph.program]

    def decode(self, rows: int) -> BatchShape:
        """Lay in one generated row of each of ``rows`` sequences, CONTEXT tokens long."""
        block, inputs = self._model.kv.block_size, self._device.inputs
        each = -(-(CONTEXT + 1) // block)
        inputs.token_ids[:rows] = np.arange(rows) + 100
        inputs.positions[:rows] = CONTEXT
        inputs.seq_lens[:rows] = CONTEXT + 1
        inputs.seg_starts[: rows + 1] = np.arange(rows + 1)
        for i in range(rows):
            first = i * each % (self._blocks - each)
            inputs.block_tables[i, :each] = np.arange(first, first + each)
            inputs.slots[i] = inputs.block_tables[i, CONTEXT // block] * block + CONTEXT % block
        inputs.logit_rows[:rows] = np.arange(rows)
        return BatchShape(rows, rows, rows, rows, rows, rows)

    def laying(self, kind: Kind, rows: int) -> Callable[[], BatchShape]:
        """What lays in ``rows`` generated rows, or the first rows of a prompt."""
        return partial(self.decode, rows) if kind is Kind.DECODE else partial(self.chunk, rows, 0)

    def chunk(self, rows: int, start: int) -> BatchShape:
        """Lay in rows [start, start + rows) of one prompt."""
        inputs, block = self._device.inputs, self._model.kv.block_size
        inputs.token_ids[:rows] = np.arange(rows) % 1000 + 100
        inputs.positions[:rows] = np.arange(start, start + rows)
        inputs.slots[:rows] = inputs.positions[:rows]  # block b lies at b
        inputs.seg_starts[:2] = (0, rows)
        inputs.seq_lens[0] = start + rows
        blocks = -(-(start + rows) // block)
        inputs.block_tables[0, :blocks] = np.arange(blocks)
        inputs.logit_rows[0] = rows - 1
        return BatchShape(rows, 1, 1, 0, 0, 0)

    def time(
        self, graph: Graph, launches: tuple[Launch, ...], shapes: list[Callable[[], BatchShape]]
    ) -> tuple[float, float]:
        """Best and median seconds of replaying ``launches`` once per shape."""
        executable = self.instantiate(graph, launches)
        seconds = [
            sum(replayed(executable, lay) for lay in shapes) for _ in range(self._repeats + 2)
        ]
        measured = sorted(seconds[2:])  # the first two warm caches and pages
        return measured[0], measured[len(measured) // 2]

    def instantiate(self, graph: Graph, launches: tuple[Launch, ...]) -> Executable:
        """The graph with these of its launches."""
        program = replace(self.program(graph), launches=launches)
        return self._device.instantiate(graph, program)


def replayed(executable: Executable, lay: Callable[[], BatchShape]) -> float:
    """Seconds of one replay."""
    shape = lay()
    begin = time.perf_counter()
    executable.replay(shape)
    return time.perf_counter() - begin


def weight_bytes(program: Program, launch: Launch) -> int:
    """Bytes of the packed weight of a linear."""
    (size,) = program.buffers[launch.inputs[1]].shape
    return int(size)


def shape_of(launch: Launch) -> str:
    """A linear's name in the table."""
    return f"linear {launch.attrs['layout']} {launch.attrs['n']}x{launch.attrs['k']}"


def linears(bench: Bench, kind: Kind, rows: int) -> Iterator[Timing]:
    """Every shape of linear, then all of them together; the head runs on rows with logits."""
    graph = bench.graph(kind, rows)
    program = bench.program(graph)
    generated = kind is Kind.DECODE
    groups: dict[str, list[Launch]] = {}
    for launch in program.launches:
        if launch.op == "linear" and (generated or _over_tokens(program, launch)):
            groups.setdefault(shape_of(launch), []).append(launch)
    groups["linears"] = [launch for group in groups.values() for launch in group]
    for what, group in groups.items():
        best, median = bench.time(graph, tuple(group), [bench.laying(kind, rows)])
        size = sum(weight_bytes(program, launch) for launch in group)
        work = sum(2 * rows * _int(launch, "n") * _int(launch, "k") for launch in group)
        yield Timing(what, ROLES[kind], rows, len(group), best, median, size, work)


def _over_tokens(program: Program, launch: Launch) -> bool:
    return program.buffers[launch.outputs[0]].shape[0] == "tokens"


def _int(launch: Launch, name: str) -> int:
    return int(launch.attrs[name])


def attention(bench: Bench, kind: Kind, rows: int, chunk: int) -> Timing:
    """All layers' attention: ``rows`` sequences at CONTEXT, or a prompt of ``rows`` in chunks."""
    generated = kind is Kind.DECODE
    graph = bench.graph(kind, rows if generated else chunk)
    launches = tuple(x for x in bench.program(graph).launches if x.op == "paged_attention")
    if generated:
        shapes: list[Callable[[], BatchShape]] = [partial(bench.decode, rows)]
        keys, read = rows * (CONTEXT + 1), rows * (CONTEXT + 1)
    else:
        starts = range(0, rows, chunk)
        shapes = [partial(bench.chunk, chunk, start) for start in starts]
        keys, read = rows * (rows + 1) // 2, sum(start + chunk for start in starts)
    best, median = bench.time(graph, launches, shapes)
    of = launches[0]
    heads, kv_heads, dim = _int(of, "heads"), _int(of, "kv_heads"), _int(of, "head_dim")
    size = len(launches) * read * kv_heads * dim * 2 * 2  # bf16 keys and values
    work = len(launches) * keys * heads * dim * 4  # a product and a sum, of keys and of values
    return Timing("attention", ROLES[kind], rows, len(launches), best, median, size, work)


def whole(bench: Bench, kind: Kind, rows: int) -> Timing:
    """The whole program, as served."""
    graph = bench.graph(kind, rows)
    launches = bench.program(graph).launches
    best, median = bench.time(graph, launches, [bench.laying(kind, rows)])
    return Timing("whole program", ROLES[kind], rows, len(launches), best, median, 0, 0)


def measure(bench: Bench) -> list[Timing]:
    """All lines of the table."""
    timings: list[Timing] = []
    for rows in (1, 8, 16, 32):
        timings += linears(bench, Kind.DECODE, rows)
        timings.append(attention(bench, Kind.DECODE, rows, 0))
        timings.append(whole(bench, Kind.DECODE, rows))
    timings += linears(bench, Kind.PREFILL, 512)
    timings.append(attention(bench, Kind.PREFILL, 2048, 512))
    timings.append(whole(bench, Kind.PREFILL, 512))
    return timings


def ceilings(threads: int) -> dict[str, float]:
    """Compile ceilings.cpp with $CXX (default c++) and run it: figures by name."""
    source = Path(__file__).with_name("kernels") / "ceilings.cpp"
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "ceilings"
        flags = ["-O3", "-std=c++17", "-pthread"]
        subprocess.run(
            [os.environ.get("CXX", "c++"), *flags, str(source), "-o", str(program)], check=True
        )
        out = subprocess.run([program, str(threads)], check=True, capture_output=True, text=True)
    pairs = (line.split() for line in out.stdout.splitlines())
    return {name: float(value) for name, value in pairs}


def markdown(timings: list[Timing], tops: dict[str, float], facts: dict[str, str]) -> str:
    """The table, with shares of the ceilings that fit each line's size."""
    rows = [["op", "rows", "launches", "best ms", "median ms", "us a launch", "GB/s", "GFLOP/s"]]
    rows[0] += ["of the ceiling", "prototype"]
    for t in timings:
        rate = (f"{t.bytes / t.best_s * 1e-9:.1f}", f"{t.flops / t.best_s * 1e-9:,.0f}")
        shown = rate if t.bytes else ("-", "-")
        each = t.best_s / t.launches * 1e6
        times = (f"{t.best_s * 1e3:.3f}", f"{t.median_s * 1e3:.3f}", f"{each:.1f}")
        line = [f"{t.what}, {t.role}", str(t.rows), str(t.launches), *times, *shown]
        rows.append([*line, share(t, tops), PROTOTYPE.get(t.key, "")])
    lines = [f"- {name}: {value}" for name, value in facts.items()]
    limits = [f"- {name}: {value:,.1f}" for name, value in tops.items()]
    head = "# Kernels against the machine's ceilings"
    parts = [head, "\n".join(lines), "## Ceilings\n\n" + "\n".join(limits)]
    return "\n\n".join([*parts, "## Kernels\n\n" + rows_of(rows)]) + "\n"


def share(timing: Timing, tops: dict[str, float]) -> str:
    """The larger share of what memory (by working set) and bf16 tiles allow."""
    if not timing.bytes:
        return "-"
    sizes = sorted(int(name.rpartition("_")[2]) for name in tops if name.startswith("read_"))
    fits = [size for size in sizes if size * 2**20 >= timing.bytes] or sizes[-1:]
    shares = {}
    if fits:
        top = tops[f"read_gb_s_{fits[0]}"]
        shares["memory"] = timing.bytes / timing.best_s * 1e-9 / top
    if "bf16_amx" in tops:
        shares["bf16 tiles"] = timing.flops / timing.best_s * 1e-9 / tops["bf16_amx"]
    if not shares:
        return "-"
    name = max(shares, key=lambda each: shares[each])
    return f"{100 * shares[name]:.0f} % of {name}"


def main() -> None:
    """Measure, print, and write when asked."""
    ap = argparse.ArgumentParser(prog="python -m benchmarks.kernel_table", description=__doc__)
    ap.add_argument("core", type=Path)
    ap.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    ap.add_argument("--repeats", type=int, default=20)
    ap.add_argument("--output", type=Path, help="write Markdown here, and JSON beside it")
    a = ap.parse_args()
    facts = {**machine(), "threads": str(a.threads), "repeats": str(a.repeats)}
    tops = ceilings(a.threads)
    timings = measure(Bench(open_core(a.core), a.threads, a.repeats))
    text = markdown(timings, tops, facts)
    print(text)
    if a.output:
        a.output.write_text(text)
        data = {"ceilings": tops, "facts": facts, "timings": [_plain(t) for t in timings]}
        a.output.with_suffix(".json").write_text(json.dumps(data, indent=1) + "\n")


def _plain(timing: Timing) -> dict[str, object]:
    return {name: getattr(timing, name) for name in Timing.__slots__}


if __name__ == "__main__":
    main()
