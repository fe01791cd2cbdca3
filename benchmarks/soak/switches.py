"""Live switches under load: no request is dropped, no token changes, and no stream waits for long.

``python -m benchmarks.soak.switches [CORE] [--count 1000] [--seed 0]``: some requests at a time
are answered while the selection changes from one family to the other and back. Every answer is
compared with that of an engine that never switches. A gap is what lies between two tokens of a
stream, in steps of that time (their running median). The load and a busy machine have long gaps of
their own, as prompt chunks take longer than steps: the longest gap is taken of every switch and of
as long a pause after it. A switch may add ``ALLOWED`` steps: however long a gap, switches that
exceed it by that much must not be more frequent than pauses that exceed it, but for one in a
hundred and what counting so few can tell. Exits with 1 when they are, or when an answer is lost or
differs.
"""

import asyncio
import itertools
import math
import random
import statistics
import sys
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct, field

from benchmarks.soak.cores import given_or_default
from benchmarks.soak.options import parser
from benchmarks.soak.trial import quiet
from engine.client import Engine
from engine.config import EngineConfig
from engine.factory import load_engine
from engine.types import FinishReason, GenerationRequest, SamplingParams

PROMPTS = 24
CLIENTS = 4
SHORTEST, LONGEST = 150, 300
ALLOWED = 2
"""Steps that a switch may add to the longest gap."""
SHARE = 0.01
Tokens = tuple[int, ...]


class Watch(Struct):
    """Seconds between two tokens of a stream: recent ones, and the longest since it was asked."""

    steps: deque[float] = field(default_factory=lambda: deque(maxlen=200))
    longest: float = 0.0

    def gap(self, seconds: float) -> None:
        """Note that a stream's token came so long after the one before it."""
        self.steps.append(seconds)
        self.longest = max(self.longest, seconds / self.typical())

    def typical(self) -> float:
        """Return the running median of steps in seconds."""
        return statistics.median(self.steps)

    def since(self) -> float:
        """Return the longest gap in steps since the last call."""
        longest, self.longest = self.longest, 0.0
        return longest


class Tally(Struct):
    """What a run met. during, between: the longest gap of each switch, and of each pause."""

    answers: int = 0
    wrong: int = 0
    during: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)


def requests(seed: int, vocab: int) -> dict[int, GenerationRequest]:
    """Return the requests that are asked over and over, by number."""
    made = {}
    for number in range(PROMPTS):
        source = random.Random(f"{seed}/{number}")
        prompt = tuple(source.randrange(vocab) for _ in range(source.randint(1, 24)))
        length = source.randint(SHORTEST, LONGEST)
        sampling = SamplingParams(max_tokens=length, temperature=0.0, ignore_eos=True)
        made[number] = GenerationRequest(str(number), prompt, sampling)
    return made


async def hear(engine: Engine, request: GenerationRequest, watch: Watch | None) -> Tokens | None:
    """Answer one request; None when it did not end as it should."""
    [stream] = engine.submit([request])
    tokens: list[int] = []
    reason, last = None, 0.0
    async for delta in stream:
        now = time.perf_counter()
        if watch is not None and last:
            watch.gap(now - last)
        last = now
        tokens += delta.token_ids
        reason = delta.finish_reason
    return tuple(tokens) if reason is FinishReason.LENGTH else None


async def unswitched(core: Path, asked: Mapping[int, GenerationRequest]) -> dict[int, Tokens]:
    """Answer every request in an engine that cannot switch."""
    engine = load_engine(EngineConfig(core=core, mixed_prefill=False))
    engine.start()
    found = await asyncio.gather(*(hear(engine, request, None) for request in asked.values()))
    await engine.close()
    if None in found:
        raise RuntimeError("a request without a switch did not end")
    return {number: tokens for number, tokens in zip(asked, found, strict=True) if tokens}


async def run(core: Path, count: int, seed: int, limit: float = math.inf) -> Tally:
    """Serve and switch until there were ``count`` switches, for ``limit`` seconds at most."""
    engine = load_engine(EngineConfig(core=core, mixed_prefill=False, live_switch=True))
    asked = requests(seed, engine.model.vocab_size)
    expected = await unswitched(core, asked)
    engine.start()
    tally, watch = Tally(), Watch()
    over = asyncio.Event()
    clients = [
        asyncio.create_task(_client(engine, asked, expected, watch, tally, over, number))
        for number in range(CLIENTS)
    ]
    await asyncio.sleep(1.0)
    watch.since()
    await _switching(engine, count, watch, tally, time.monotonic() + limit)
    over.set()
    await asyncio.gather(*clients)
    epoch = engine.describe()["graphs"]["epoch"]
    await engine.close()
    if epoch != len(tally.during):
        raise RuntimeError(f"{len(tally.during)} switches, but the epoch is {epoch}")
    return tally


async def _client(
    engine: Engine,
    asked: Mapping[int, GenerationRequest],
    expected: Mapping[int, Tokens],
    watch: Watch,
    tally: Tally,
    over: asyncio.Event,
    number: int,
) -> None:
    """Ask one request after the other until the switches are over."""
    source = random.Random(number)
    turn = 0
    while not over.is_set():
        chosen = source.randrange(PROMPTS)
        request = asked[chosen]
        named = GenerationRequest(f"{number}-{turn}", request.prompt_ids, request.sampling)
        tokens = await hear(engine, named, watch)
        tally.answers += 1
        if tokens != expected[chosen]:
            tally.wrong += 1
            print(f"request {chosen}: expected {expected[chosen]}, found {tokens}", flush=True)
        turn += 1


async def _switching(engine: Engine, count: int, watch: Watch, tally: Tally, until: float) -> None:
    """Switch there and back, with a pause as long as the switch after each."""
    for number in range(count):
        if time.monotonic() > until:
            break
        started = time.perf_counter()
        await engine.switch(number % 2 == 0)
        seconds = time.perf_counter() - started
        await asyncio.sleep(2 * watch.typical())  # the step in which it took place is over
        tally.during.append(watch.since())
        await asyncio.sleep(seconds + 2 * watch.typical())
        tally.between.append(watch.since())
        if number % 100 == 99:
            print(f"{number + 1} switches, {tally.wrong} wrong answers", flush=True)


def above(ordered: list[float], limit: float) -> float:
    """Return the share of ascending gaps above a limit."""
    return 1 - bisect_right(ordered, limit) / max(1, len(ordered))


def excess(tally: Tally, added: float) -> float:
    """Return by how much a switch too often adds more than ``added`` steps; at most 0 is well.

    Over all lengths of gaps: the share of switches above it by ``added``, less that of pauses above
    it, ``SHARE``, and two standard errors of counting both.
    """
    during, between = sorted(tally.during), sorted(tally.between)
    most = -math.inf
    for length in between:
        switches, pauses = above(during, length + added), above(between, length)
        share = (switches + pauses) / 2
        margin = SHARE + 2 * math.sqrt(2 * share * (1 - share) / len(between))
        most = max(most, switches - pauses - margin)
    return most


def added_steps(tally: Tally) -> float:
    """Return what a switch adds at most, in steps: the least number of quarters without excess."""
    return next(n / 4 for n in itertools.count() if excess(tally, n / 4) <= 0)


def report(tally: Tally, seconds: float) -> bool:
    """Print what came; say whether all is well."""
    for name, gaps in (("during switches", tally.during), ("without", tally.between)):
        ordered = sorted(gaps)
        middle, high = statistics.median(ordered), ordered[int(0.99 * (len(ordered) - 1))]
        print(
            f"longest gap {name}: median {middle:.2f} steps, 99 of 100 below {high:.2f}, "
            f"longest {ordered[-1]:.2f}, above 3: {above(ordered, 3):.2%}"
        )
    added = added_steps(tally)
    long = added > ALLOWED
    print(f"a switch adds at most {added} steps to the longest gap")
    print(
        f"{len(tally.during)} switches in {seconds:.0f} s: {tally.answers} answers, "
        f"{tally.wrong} wrong or lost; gaps {'too long' if long else 'within bounds'}"
    )
    return tally.wrong == 0 and not long


def main() -> int:
    """Run and print; return the exit code."""
    options_of = parser(__doc__, 1000, "switches")
    options = options_of.parse_args()
    quiet()
    started = time.monotonic()
    with given_or_default(options.core) as core:
        tally = asyncio.run(run(core, options.count, options.seed, options.seconds))
    return 0 if report(tally, time.monotonic() - started) else 1


if __name__ == "__main__":
    sys.exit(main())
