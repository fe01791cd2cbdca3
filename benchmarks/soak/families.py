"""Both graph families on the same traffic: not one token may differ.

``python -m benchmarks.soak.families [CORE] [--count 10000] [--seed 0]``: loads CORE (or the
default model) twice, with and without mixed prefill, and serves the same greedy requests to both,
some hundreds at a time, in other orders, so that no batch is the same. The cache is small, so that
sequences are preempted; prompts share beginnings, so that the prefix cache is used; some requests
are given up. Prints counts, and exits with 1 when a token, a log probability or an end differs.
"""

import asyncio
import math
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from benchmarks.soak.cores import given_or_default
from benchmarks.soak.options import add_first, parser
from benchmarks.soak.traffic import WAVE, Answer, Ask, answer, asks
from benchmarks.soak.trial import quiet
from engine.client import Engine
from engine.config import EngineConfig
from engine.core.codec import decode_manifest
from engine.factory import load_engine
from engine.types import FinishReason

AT_ONCE = 64
BLOCKS = 56
"""Cache blocks: fewer than the sequences that run at once would take."""


class Tally(Struct):
    """What a run met."""

    requests: int = 0
    tokens: int = 0
    aborted: int = 0
    wrong: int = 0


def load(core: Path, mixed: bool) -> Engine:
    """Load one family, with little room for its cache."""
    kv = decode_manifest((core / "core.json").read_bytes()).model.kv
    return load_engine(
        EngineConfig(core=core, mixed_prefill=mixed, kv_cache_bytes=BLOCKS * kv.bytes_per_block)
    )


async def serve(engine: Engine, batch: Sequence[Ask], order: random.Random) -> dict[str, Answer]:
    """Serve requests in a random order, ``AT_ONCE`` at a time."""
    waiting = list(batch)
    order.shuffle(waiting)
    found: dict[str, Answer] = {}

    async def client() -> None:
        while waiting:
            ask = waiting.pop()
            found[ask.request.id] = await answer(engine, ask)

    await asyncio.gather(*(client() for _ in range(AT_ONCE)))
    return found


def compare(batch: Sequence[Ask], left: dict[str, Answer], right: dict[str, Answer]) -> list[str]:
    """Return the ids of requests whose answers differ, or that ended in an error."""
    return [
        ask.request.id
        for ask in batch
        if not left[ask.request.id].agrees(right[ask.request.id])
        or FinishReason.ERROR in (left[ask.request.id].reason, right[ask.request.id].reason)
    ]


async def run(core: Path, first: int, count: int, seed: int, limit: float = math.inf) -> Tally:
    """Serve the requests to both families, for ``limit`` seconds at most, and compare."""
    engines = [load(core, True), load(core, False)]
    tally = Tally()
    for engine in engines:
        engine.start()
    started = time.monotonic()
    for start in range(first, first + count, WAVE):
        size = min(WAVE, first + count - start)
        batch = asks(seed, start, size, engines[0].model.vocab_size)
        order = random.Random(f"{seed}/{start}/order")
        left, right = [await serve(engine, batch, order) for engine in engines]
        wrong = compare(batch, left, right)
        for name in wrong:
            print(f"request {name}: mixed {left[name]}\n  separate {right[name]}")
        tally.requests += size
        tally.tokens += sum(len(found.tokens) for found in left.values())
        tally.aborted += sum(found.reason is None for found in left.values())
        tally.wrong += len(wrong)
        seconds = time.monotonic() - started
        if seconds > limit:
            break
        if (start - first) // WAVE % 8 == 7:
            print(f"{tally.requests} requests, {tally.wrong} differ, {seconds:.0f} s", flush=True)
    for name, engine in zip(("mixed", "separate"), engines, strict=True):
        print(f"{name:9}{summary(engine)}")
        await engine.close()
    return tally


def summary(engine: Engine) -> str:
    """Return what an engine's metrics say of its part."""
    wanted = {
        "flare_prompt_tokens_total": "prompt tokens",
        "flare_prefix_cache_hits_total": "of them from the prefix cache",
        "flare_generation_tokens_total": "tokens generated",
        "flare_preemptions_total": "preemptions",
    }
    read = engine.metrics.registry.get_sample_value
    return ", ".join(f"{read(name) or 0:.0f} {text}" for name, text in wanted.items())


def main() -> int:
    """Run and print; return the exit code."""
    options_of = parser(__doc__, 10_000, "requests")
    add_first(options_of, "request")
    options = options_of.parse_args()
    quiet()
    started = time.monotonic()
    with given_or_default(options.core) as core:
        tally = asyncio.run(run(core, options.first, options.count, options.seed, options.seconds))
    print(
        f"{tally.requests} requests to both families ({tally.aborted} given up, {tally.tokens} "
        f"tokens) in {time.monotonic() - started:.0f} s: {tally.wrong} differ"
    )
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
