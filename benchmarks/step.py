"""Python time of one step at many streams: the server with a device that only sleeps.

python -m benchmarks.step CORE [--streams 32] [--tokens 300]

The server is the real one but for its replays, which sleep, and its sampler, which draws ids from
a list; so what its threads compute is the step's Python: schedule, plan, prepare, sample,
detokenize and SSE, with the system calls that send it. Measured in CPU seconds of the threads,
which other work on the machine changes less than wall time. The client is another process.
"""

import argparse
import asyncio
import cProfile
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from app import cli
from app.commands import run
from app.loading import Loaded
from benchmarks.serving.process import free_port
from engine.core.schema import Graph
from engine.device.base import BatchShape, Device, Executable, InputBuffers, SampleBatch, Samples
from engine.factory import load_engine
from engine.ir.program import Program
from engine.ranks.local import DeviceSpec
from engine.text.assets import folder_files, load_text
from engine.types import MAX_LOGPROBS, SamplingParams

WORDS = tuple(range(1000, 9000))
"""Ids that are drawn in turn: ordinary pieces of the tokenizer."""


class SleepingDevice:
    """A device whose replays take ``seconds`` of sleep, GIL released, and compute nothing."""

    def __init__(self, spec: DeviceSpec, seconds: float) -> None:
        rows, seqs, logits = spec.capacity.tokens, spec.capacity.seqs, spec.capacity.logits

        def buffer(*shape: int) -> Any:
            return np.zeros(shape, np.int32)

        self.inputs = InputBuffers(
            buffer(rows),
            buffer(rows),
            buffer(rows),
            buffer(seqs + 1),
            buffer(seqs),
            buffer(seqs, spec.max_blocks),
            buffer(logits),
        )
        self.sampler = _ListSampler()
        self._seconds = seconds

    def instantiate(self, graph: Graph, program: Program) -> Executable:
        return _Sleep(self._seconds)

    def scrub(self, blocks: Sequence[int]) -> None:
        return None


class _Sleep:
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def replay(self, shape: BatchShape) -> None:
        time.sleep(self._seconds)


class _ListSampler:
    def __init__(self) -> None:
        self._next = 0

    def set(
        self,
        slot: int,
        params: SamplingParams,
        stop_ids: Sequence[int],
        prompt_ids: Sequence[int],
        output_ids: Sequence[int],
    ) -> None:
        return None

    def clear(self, slot: int) -> None:
        return None

    def sample(self, batch: SampleBatch) -> Samples:
        count = len(batch.rows)
        self._next += 1
        tokens = np.full(count, WORDS[self._next % len(WORDS)], np.int32)
        return _samples(tokens)

    def score(self, rows: Any, targets: Any, top_n: Any) -> Samples:
        return _samples(np.asarray(targets, np.int32))


def _samples(tokens: Any) -> Samples:
    count = len(tokens)
    return Samples(
        tokens,
        np.zeros(count, np.float32),
        np.zeros((count, MAX_LOGPROBS), np.int32),
        np.zeros((count, MAX_LOGPROBS), np.float32),
    )


def serve(core: str, port: int, seconds: float, profile: str | None) -> None:
    """Run the server in this process until it is ended."""

    def open_device(spec: DeviceSpec) -> Device:
        return SleepingDevice(spec, seconds)

    def start_loading(config: Any, early: object) -> "Future[Loaded]":
        future: Future[Loaded] = Future()
        text = load_text(folder_files(Path(core) / "text"))
        future.set_result(Loaded(load_engine(config, open_device), text))
        return future

    run.start_loading = start_loading
    command = ["run", core, "--port", str(port), "--log-level", "warning"]
    if profile is None:
        cli.main(command)
        return
    profiler = cProfile.Profile()
    try:
        profiler.runcall(cli.main, command)
    finally:
        profiler.dump_stats(profile)


def threads(pid: int) -> dict[int, float]:
    """CPU seconds of each thread of a process."""
    return {
        int(task.name): int((task / "schedstat").read_text().split()[0]) / 1e9
        for task in Path(f"/proc/{pid}/task").iterdir()
    }


def kernel_seconds(pid: int) -> float:
    """CPU seconds that a process spent in the kernel: its system calls."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[12]) / os.sysconf("SC_CLK_TCK")


async def generate(base: str, model: str, streams: int, tokens: int) -> None:
    """Run the streams to their end; what they say is thrown away."""
    body = {"model": model, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}

    async def one(client: httpx.AsyncClient, index: int) -> None:
        prompt = [100 + index] * 16
        async with client.stream(
            "POST", f"{base}/v1/completions", json={**body, "prompt": prompt, "stream": True}
        ) as answer:
            async for _ in answer.aiter_raw():
                pass

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=120, limits=limits) as client:
        await asyncio.gather(*(one(client, index) for index in range(streams)))


def measure(base: str, pid: int, streams: int, tokens: int) -> dict[str, float]:
    """CPU milliseconds per step: of the loop's thread, of the others, and of all."""
    model = httpx.get(f"{base}/v1/models").json()["data"][0]["id"]
    asyncio.run(generate(base, model, streams, 16))
    spent: list[dict[int, float]] = []
    kernel: list[float] = []
    for count in (tokens, 2 * tokens):  # their difference leaves the requests' own cost out
        before, calls = threads(pid), kernel_seconds(pid)
        asyncio.run(generate(base, model, streams, count))
        after = threads(pid)
        kernel.append(kernel_seconds(pid) - calls)
        spent.append({task: after[task] - before.get(task, 0.0) for task in after})
    steps = {task: 1e3 * (spent[1][task] - spent[0].get(task, 0.0)) / tokens for task in spent[1]}
    loop = steps.pop(pid)
    rest = sum(steps.values())
    return {
        "streams": streams,
        "loop_ms": round(loop, 3),
        "replay_thread_ms": round(rest, 3),
        "step_ms": round(loop + rest, 3),
        "of_it_kernel_ms": round(1e3 * (kernel[1] - kernel[0]) / tokens, 3),
        "per_token_us": round(1e3 * (loop + rest) / streams, 1),
    }


def wait_ready(base: str, alive: Callable[[], bool]) -> None:
    """Poll /health until it answers 200."""
    while alive():
        try:
            if httpx.get(f"{base}/health").status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.05)
    raise RuntimeError("the server ended")


def main() -> None:
    """Measure and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("core")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--replay-ms", type=float, default=4.0)
    parser.add_argument("--profile", help="file for the loop thread's profile (cProfile)")
    arguments = parser.parse_args()
    port = free_port()
    server = multiprocessing.get_context("spawn").Process(
        target=serve,
        args=(arguments.core, port, arguments.replay_ms / 1e3, arguments.profile),
    )
    server.start()
    try:
        base = f"http://127.0.0.1:{port}"
        wait_ready(base, server.is_alive)
        assert server.pid is not None
        print(json.dumps(measure(base, server.pid, arguments.streams, arguments.tokens), indent=1))
    finally:
        server.terminate()
        server.join()


if __name__ == "__main__":
    main()
