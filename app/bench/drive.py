"""Send the requests of a workload to a server, each when it is due, and keep what came back."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from app.bench.client import Client, Reply, ReplyError
from app.bench.stats import gaps
from app.bench.workloads import Request


@dataclass(frozen=True, slots=True)
class Answer:
    """One request that was served. Times are seconds since the start of the run.

    due: when it should have been sent. It was sent later when all streams were busy; the time to
    its first token counts from ``due``, so that a server that falls behind does not hide it.
    sent: when it was sent; None: when it was due.
    """

    index: int
    due: float
    first_token: float
    gaps: tuple[float, ...]
    prompt_tokens: int
    tokens: int
    text: str
    sent: float | None = None

    @property
    def wait(self) -> float:
        """Seconds from when it was due to its first token."""
        return self.first_token - self.due


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run of a load. ``failures``: index of the request, and what went wrong."""

    seconds: float
    answers: tuple[Answer, ...]
    failures: tuple[tuple[int, str], ...]


def joined(parts: Sequence[Outcome]) -> Outcome:
    """Runs as one, as if each had begun when the one before it ended; indices go on, too."""
    seconds, count = 0.0, 0
    answers: list[Answer] = []
    failures: list[tuple[int, str]] = []
    for part in parts:
        answers += (_shifted(answer, seconds, count) for answer in part.answers)
        failures += ((count + index, why) for index, why in part.failures)
        seconds += part.seconds
        count += len(part.answers) + len(part.failures)
    return Outcome(seconds, tuple(answers), tuple(failures))


def _shifted(answer: Answer, seconds: float, count: int) -> Answer:
    return replace(
        answer,
        index=answer.index + count,
        due=answer.due + seconds,
        first_token=answer.first_token + seconds,
        sent=None if answer.sent is None else answer.sent + seconds,
    )


async def drive(client: Client, requests: Sequence[Request], concurrency: int) -> Outcome:
    """Send all; at most ``concurrency`` at once. A request that fails is a result, not an error."""
    run = _Run(client, asyncio.Semaphore(concurrency), time.perf_counter())
    numbered = enumerate(requests)
    for _, group in groupby(numbered, key=lambda pair: pair[1].group):
        await asyncio.gather(*(run.one(i, request) for i, request in group))
    seconds = time.perf_counter() - run.start
    answers = tuple(sorted(run.answers, key=lambda answer: answer.index))
    return Outcome(seconds, answers, tuple(sorted(run.failures)))


class _Run:
    """What the tasks of one run share. ``start``: of ``time.perf_counter``."""

    def __init__(self, client: Client, streams: asyncio.Semaphore, start: float) -> None:
        self.start = start
        self.answers: list[Answer] = []
        self.failures: list[tuple[int, str]] = []
        self._client = client
        self._streams = streams

    async def one(self, index: int, request: Request) -> None:
        if request.at is not None:
            await asyncio.sleep(self.start + request.at - time.perf_counter())
        async with self._streams:
            try:
                reply = await self._client.complete(request.prompt, request.max_tokens)
            except ReplyError as error:
                self.failures.append((index, str(error)))
                return
        due = reply.sent - self.start if request.at is None else request.at
        self.answers.append(_answer(index, due, self.start, reply))


def _answer(index: int, due: float, start: float, reply: Reply) -> Answer:
    return Answer(
        index,
        due,
        reply.arrivals[0] - start,
        tuple(gaps(reply.arrivals)),
        reply.prompt_tokens,
        reply.tokens,
        reply.text,
        reply.sent - start,
    )
