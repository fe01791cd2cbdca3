"""The scenarios: each sends requests to one server and returns the figures of one repeat."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from app.bench.client import Client, Reply
from app.bench.stats import gaps, median, percentile
from benchmarks.serving.prompts import Prompts

BURST_PROMPT = 256
OUTPUT = 128
ARRIVAL_STREAMS = 8
ARRIVAL_PROMPT = 4096
ARRIVAL_OUTPUT = 1024  # the streams are left long before that

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Scenario:
    """``name`` as on the command line; ``run`` measures one repeat."""

    name: str
    run: Callable[[Client, Prompts], Awaitable[Figures]]
    peak_memory: str = ""  # the metric that holds the server's peak memory during it


async def warm(client: Client, prompts: Prompts) -> None:
    """One request of each prompt length up to 2048, so that no scenario pays for first ones."""
    for tokens in (64, BURST_PROMPT, 512, 2048):
        await client.complete(prompts.draw(tokens), 8)


async def single(client: Client, prompts: Prompts) -> Figures:
    """One stream: 512 prompt tokens, 128 tokens out."""
    reply = await client.complete(prompts.draw(512), OUTPUT)
    return {"single_ttft_s": reply.first_token_s, "single_tok_s": reply.decode_tok_s}


async def prefill(client: Client, prompts: Prompts) -> Figures:
    """A prompt of 2048 tokens; its tokens over the time to the first token."""
    reply = await client.complete(prompts.draw(2048), 2)
    return {"prefill_tok_s": (reply.prompt_tokens or 2048) / reply.first_token_s}


def burst(streams: int) -> Callable[[Client, Prompts], Awaitable[Figures]]:
    """``streams`` requests at once, 256 prompt tokens and 128 out each."""

    async def run(client: Client, prompts: Prompts) -> Figures:
        drawn = [prompts.draw(BURST_PROMPT) for _ in range(streams)]
        start = time.perf_counter()
        replies = await asyncio.gather(*(client.complete(prompt, OUTPUT) for prompt in drawn))
        wall = time.perf_counter() - start
        between = [gap for reply in replies for gap in gaps(reply.arrivals)]
        return {
            f"burst{streams}_tok_s": sum(reply.tokens for reply in replies) / wall,
            f"burst{streams}_ttft_s": median(reply.first_token_s for reply in replies),
            f"burst{streams}_gap_ms": 1000 * percentile(between, 99),
        }

    return run


async def arrival(client: Client, prompts: Prompts) -> Figures:
    """A prompt of 4096 tokens arrives while eight streams decode.

    Gaps are those of the eight streams that overlap the time from sending the prompt to its
    first token.
    """
    stop = asyncio.Event()
    streams = [Reply(0.0) for _ in range(ARRIVAL_STREAMS)]
    tasks = [
        asyncio.create_task(
            client.complete(prompts.draw(BURST_PROMPT), ARRIVAL_OUTPUT, reply, stop)
        )
        for reply in streams
    ]
    try:
        await _all_decode(streams, tasks)
        arrived = await client.complete(prompts.draw(ARRIVAL_PROMPT), 16)
        await asyncio.sleep(0.2)  # the gap that the first token ended is closed in every stream
    finally:
        stop.set()
        await asyncio.gather(*tasks, return_exceptions=True)
    return arrival_figures(streams, arrived)


async def _all_decode(streams: list[Reply], tasks: list[asyncio.Task[Reply]]) -> None:
    """Wait until every stream has eight tokens, and one second of steady decoding."""
    while not all(len(reply.arrivals) >= 8 for reply in streams):
        for task in tasks:
            if task.done():
                task.result()  # raises what ended it
        await asyncio.sleep(0.02)
    await asyncio.sleep(1.0)


def arrival_figures(streams: list[Reply], arrived: Reply) -> Figures:
    """The figures of ``arrival`` from the replies of one repeat."""
    start, end = arrived.sent, arrived.arrivals[0]
    during = [
        after - before
        for reply in streams
        for before, after in zip(reply.arrivals, reply.arrivals[1:], strict=False)
        if after > start and before < end
    ]
    tokens = sum(start < at <= end for reply in streams for at in reply.arrivals)
    return {
        "arrival_ttft_s": arrived.first_token_s,
        "arrival_gap_ms": 1000 * percentile(during, 99),
        "arrival_tok_s": tokens / (end - start),
    }


SCENARIOS = (
    Scenario("single", single),
    Scenario("prefill", prefill),
    Scenario("burst8", burst(8)),
    Scenario("burst32", burst(32), peak_memory="burst32_rss_mib"),
    Scenario("arrival", arrival),
)
