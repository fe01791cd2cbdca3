"""How the engine's speed grows with batch, context and threads: tables, JSON and a plot.

python -m benchmarks.growth CORE [--batches 1,2,...] [--contexts 128,...] [--threads 1,2]
    [--repeats 3] [--output DIRECTORY]

The whole engine (scheduler, planner, replays, sampling) without HTTP and text: greedy sequences of
random tokens, end tokens ignored, prefix cache off. Decode tokens a second are counted while all
sequences of the batch decode at the same time.
"""

import argparse
import asyncio
import datetime
import json
import os
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from app.bench.machine import machine
from app.bench.stats import median
from benchmarks.chart import Chart, svg
from benchmarks.serving.report import rows_of
from engine.client import Engine
from engine.config import EngineConfig
from engine.factory import load_engine
from engine.types import GenerationRequest, SamplingParams, TokenStream

BATCH_CONTEXT = 128  # prompt tokens while the batch grows
STEADY = 32  # tokens that every sequence of a batch draws while all decode, about
FIRST_ID = 1000  # ids below may be special tokens


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement. prompt_tok_s: prompt tokens of the batch over the last first token."""

    threads: int
    batch: int
    context: int
    decode_tok_s: float
    prompt_tok_s: float


@dataclass(slots=True)
class Trace:
    """When the tokens of one sequence came."""

    times: list[float] = field(default_factory=list)

    async def follow(self, stream: TokenStream) -> None:
        """Read a stream to its end."""
        async for delta in stream:
            self.times += [time.perf_counter()] * len(delta.token_ids)


async def measure(engine: Engine, threads: int, batch: int, context: int, seed: int) -> Point:
    """Run ``batch`` sequences with prompts of ``context`` tokens."""
    draw = random.Random(seed)
    chunks = -(-batch * context // 512)  # about the steps until the last sequence decodes
    sampling = SamplingParams(max_tokens=chunks + STEADY, temperature=0.0, ignore_eos=True)
    vocabulary = range(FIRST_ID, engine.model.vocab_size)
    requests = [
        GenerationRequest(f"{seed}-{i}", tuple(draw.choices(vocabulary, k=context)), sampling)
        for i in range(batch)
    ]
    traces = [Trace() for _ in requests]
    start = time.perf_counter()
    streams = engine.submit(requests)
    await asyncio.gather(*(t.follow(s) for t, s in zip(traces, streams, strict=True)))
    prompts = max(trace.times[0] for trace in traces) - start
    return Point(threads, batch, context, steady_rate(traces), batch * context / prompts)


def steady_rate(traces: Sequence[Trace]) -> float:
    """Tokens a second of all sequences, from the last one's first token to the first one's end.

    Raises ValueError when there is no such time.
    """
    start = max(trace.times[0] for trace in traces)
    end = min(trace.times[-1] for trace in traces)
    if end <= start:
        raise ValueError("the sequences never all decoded at the same time")
    return sum(start < at <= end for trace in traces for at in trace.times) / (end - start)


async def sweep(
    core: Path, threads: int, shapes: Sequence[tuple[int, int]], repeats: int
) -> list[Point]:
    """``repeats`` rounds over all (batch, context) shapes with one thread count, on one engine."""
    engine = load_engine(EngineConfig(core=core, threads=threads, prefix_cache=False))
    engine.start()
    try:
        await measure(engine, threads, 1, BATCH_CONTEXT, seed=0)  # warms what the first one pays
        return [
            await measure(engine, threads, batch, context, seed)
            for seed, (batch, context) in enumerate([*shapes] * repeats, start=1)
        ]
    finally:
        await engine.close()


def shapes_of(batches: Sequence[int], contexts: Sequence[int]) -> list[tuple[int, int]]:
    """(batch, context) of all points, each once."""
    shapes = [(batch, BATCH_CONTEXT) for batch in batches]
    return [*dict.fromkeys([*shapes, *((1, context) for context in contexts)])]


def medians(points: Sequence[Point]) -> list[Point]:
    """One point per threads, batch and context: the medians of its repeats."""
    groups: dict[tuple[int, int, int], list[Point]] = {}
    for point in points:
        groups.setdefault((point.threads, point.batch, point.context), []).append(point)
    return [
        Point(*key, median(p.decode_tok_s for p in group), median(p.prompt_tok_s for p in group))
        for key, group in groups.items()
    ]


def charts(points: Sequence[Point]) -> list[Chart]:
    """Decode speed by batch and by context, prompt speed by context; a line per thread count."""
    return [
        Chart(
            f"Decode, prompts of {BATCH_CONTEXT}",
            "sequences",
            "tokens/s",
            _series([p for p in points if p.context == BATCH_CONTEXT], "batch", "decode_tok_s"),
        ),
        Chart(
            "Decode, one sequence",
            "context, tokens",
            "tokens/s",
            _series([p for p in points if p.batch == 1], "context", "decode_tok_s"),
        ),
        Chart(
            "Prompt, one sequence",
            "prompt, tokens",
            "tokens/s",
            _series([p for p in points if p.batch == 1], "context", "prompt_tok_s"),
        ),
    ]


def _series(points: Sequence[Point], x: str, y: str) -> dict[str, list[tuple[float, float]]]:
    lines: dict[str, list[tuple[float, float]]] = {}
    for point in sorted(points, key=lambda p: (p.threads, getattr(p, x))):
        name = f"{point.threads} thread{'s' if point.threads > 1 else ''}"
        lines.setdefault(name, []).append((getattr(point, x), getattr(point, y)))
    return lines


def markdown(points: Sequence[Point], facts: dict[str, str], plot: str) -> str:
    """Facts, the plot and one table of medians."""
    rows = [["threads", "sequences", "context", "decode tok/s", "prompt tok/s"]]
    for p in points:
        figures = (f"{p.decode_tok_s:,.0f}", f"{p.prompt_tok_s:,.0f}")
        rows.append([str(p.threads), str(p.batch), str(p.context), *figures])
    lines = "\n".join(f"- {name}: {value}" for name, value in facts.items())
    return f"# Growth of the engine\n\n{lines}\n\n![growth]({plot})\n\n{rows_of(rows)}\n"


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    """Measure, print, and write when asked."""
    ap = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    ap.add_argument("core", type=Path)
    ap.add_argument("--batches", type=_numbers, default=[1, 2, 4, 8, 16, 32, 64])
    ap.add_argument("--contexts", type=_numbers, default=[128, 512, 1024, 2048, 4096, 8000])
    cores = len(os.sched_getaffinity(0))
    ap.add_argument("--threads", type=_numbers, default=sorted({1, cores}))
    ap.add_argument("--output", type=Path, help="write growth-DATE.md, .json and .svg here")
    ap.add_argument("--repeats", type=int, default=3)
    a = ap.parse_args()
    facts = {**machine(), "repeats": str(a.repeats)}
    shapes = shapes_of(a.batches, a.contexts)
    runs = [asyncio.run(sweep(a.core, threads, shapes, a.repeats)) for threads in a.threads]
    points = [point for run in runs for point in run]
    middle = medians(points)
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    text = markdown(middle, {"date": date, **facts}, f"growth-{date}.svg")
    print(text)
    if a.output:
        a.output.mkdir(parents=True, exist_ok=True)
        path = a.output / f"growth-{date}.md"
        path.write_text(text)
        path.with_suffix(".svg").write_text(svg(charts(middle)))
        data = {"date": date, "machine": facts, "points": [asdict(p) for p in points]}
        path.with_suffix(".json").write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
