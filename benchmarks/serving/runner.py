"""Rounds: in each, every server in turn is started, measured over all scenarios and ended."""

import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from app.bench.client import Client, ReplyError
from benchmarks.serving.process import Process, ServerError, free_port
from benchmarks.serving.prompts import Prompts
from benchmarks.serving.results import Sample
from benchmarks.serving.scenarios import Figures, Scenario, warm
from benchmarks.serving.servers import Server

REQUEST_TIMEOUT_S = 300.0
FIRST_PROMPT = 16


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run. ``words``: of the prompts; ``logs``: where the servers' output goes."""

    servers: Sequence[Server]
    scenarios: Sequence[Scenario]
    rounds: int
    words: Sequence[str]
    logs: Path


async def run_rounds(plan: Plan) -> list[Sample]:
    """All samples. The servers take turns, and each round starts with another one."""
    samples: list[Sample] = []
    for number in range(plan.rounds):
        for server in _rotated(plan.servers, number):
            async for sample in _measure(plan, server, number):
                say(sample)
                samples.append(sample)
    return samples


def _rotated(servers: Sequence[Server], by: int) -> Iterator[Server]:
    for i in range(len(servers)):
        yield servers[(i + by) % len(servers)]


def say(sample: Sample) -> None:
    """One line of progress on standard error."""
    figures = ", ".join(f"{name} {value:.4g}" for name, value in sample.figures.items())
    what = f"round {sample.round + 1}, {sample.server}, {sample.scenario}"
    print(f"{what}: {sample.error or figures}", file=sys.stderr, flush=True)


async def _measure(plan: Plan, server: Server, number: int) -> AsyncIterator[Sample]:
    """Start a server, yield a sample for its start and for each scenario, end it."""
    port = free_port()
    prompts = Prompts(plan.words, seed=number + 1)
    log = plan.logs / f"{server.name.replace(' ', '-')}.log"
    body = {"model": server.model, **server.body}
    client = Client(f"http://127.0.0.1:{port}/v1", body, REQUEST_TIMEOUT_S)
    with Process(server.at(port), server.environment, log) as process:
        async with client:
            try:
                start = await _start(process, server, port, client, prompts)
                await warm(client, prompts)
            except (ServerError, ReplyError) as error:
                yield Sample(server.name, number, "start", {}, str(error))
                return
            yield Sample(server.name, number, "start", {"start_s": start})
            for scenario in plan.scenarios:
                yield await _sample(process, server, number, scenario, client, prompts)


async def _start(
    process: Process, server: Server, port: int, client: Client, prompts: Prompts
) -> float:
    """Seconds from the start of the process to the first token of a first, short request."""
    await process.ready(f"http://127.0.0.1:{port}{server.ready_path}", server.ready_s)
    reply = await client.complete(prompts.draw(FIRST_PROMPT), 1)
    return reply.arrivals[0] - process.started


async def _sample(
    process: Process,
    server: Server,
    number: int,
    scenario: Scenario,
    client: Client,
    prompts: Prompts,
) -> Sample:
    """One repeat of one scenario; a failure of the server is a result, not the run's end."""
    watched = process.peak_memory() if scenario.peak_memory else nullcontext()
    try:
        process.check()
        with watched as peak:
            figures: Figures = await scenario.run(client, prompts)
        if peak is not None:
            figures[scenario.peak_memory] = peak.mib
    except (ServerError, ReplyError, ValueError, ZeroDivisionError) as error:
        return Sample(server.name, number, scenario.name, {}, f"{type(error).__name__}: {error}")
    return Sample(server.name, number, scenario.name, figures)
