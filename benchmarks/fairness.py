"""Many streams at once: do all end, do they share alike, does the event loop stay quick?

``python benchmarks/fairness.py CORE [--streams 200] [--tokens 64]``: serves CORE, opens the streams
together, and prints how many ended, the most and fewest tokens that a stream got within those five
seconds all through which the most of them ran, and how long ``/live`` took meanwhile, asked 50
times a second by another process: the lag of the event loop, plus one round trip.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.process import flare, server_process  # noqa: E402

WINDOW = 5.0
PROBE_SECONDS = 0.02


async def stream(client: httpx.AsyncClient, model: str, index: int, tokens: int) -> list[float]:
    """When each token of one stream came."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": f"Count from {index}. " * (1 + index % 5)}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
    }
    times: list[float] = []
    async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                ids = json.loads(line[6:])["choices"][0].get("token_ids") or ()
                times += [time.monotonic()] * len(ids)
    if len(times) != tokens:
        raise RuntimeError(f"stream {index} got {len(times)} of {tokens} tokens")
    return times


def shares(streams: Sequence[Sequence[float]]) -> list[int]:
    """Tokens of each stream that runs all through the window in which the most of them do."""
    starts = sorted(times[0] for times in streams)
    windows = [[times for times in streams if present(times, start)] for start in starts]
    best = max(range(len(starts)), key=lambda index: len(windows[index]))
    start = starts[best]
    return [sum(start < when <= start + WINDOW for when in times) for times in windows[best]]


def present(times: Sequence[float], start: float) -> bool:
    """Whether a stream has begun before a window and ends behind it."""
    return times[0] <= start and times[-1] >= start + WINDOW


def probe(url: str) -> None:
    """Ask ``/live`` until standard input ends; print the milliseconds of each answer."""
    with httpx.Client(base_url=url, timeout=60) as client:
        while True:
            started = time.perf_counter()
            client.get("/live")
            print(f"{(time.perf_counter() - started) * 1e3:.2f}", flush=True)
            time.sleep(PROBE_SECONDS)


async def run(url: str, count: int, tokens: int) -> tuple[list[list[float]], int]:
    """The token times of all streams, and how many the server runs at once."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:
        model = (await client.get("/v1/models")).json()["data"][0]["id"]
        slots = (await client.get("/v1/config")).json()["scheduler"]["max_num_seqs"]
        asked = (stream(client, model, index, tokens) for index in range(count))
        return list(await asyncio.gather(*asked)), slots


def measure(core: str, count: int, tokens: int) -> None:
    """Serve, load, probe, print."""
    with server_process(flare("run", core, "--port", "0")) as server:
        url = server.ready()
        command = [sys.executable, __file__, "--probe", url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as prober:
            time.sleep(0.5)
            started = time.monotonic()
            streams, slots = asyncio.run(run(url, count, tokens))
            seconds = time.monotonic() - started
            prober.terminate()
            lags = sorted(float(line) for line in prober.communicate()[0].splitlines())
    counts = shares(streams)
    print(f"streams            {len(streams)} of {count} ended, {slots} at once at most")
    print(f"tokens per second  {count * tokens / seconds:.0f} in {seconds:.1f} s")
    if counts and min(counts):
        ratio = max(counts) / min(counts)
        words = f"{min(counts)} to {max(counts)} tokens, ratio {ratio:.2f}"
        print(f"{len(counts)} in one window   {words}")
    p50, p99 = (lags[int(len(lags) * part)] for part in (0.5, 0.99))
    print(f"/live              p50 {p50:.1f} ms, p99 {p99:.1f} ms, worst {lags[-1]:.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("core", nargs="?")
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--probe", metavar="URL", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.probe:
        probe(options.probe)
    elif options.core:
        measure(options.core, options.streams, options.tokens)
    else:
        parser.error("which core?")


if __name__ == "__main__":
    main()
