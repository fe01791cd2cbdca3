"""Named workloads: what is sent, how much is asked for, and when it arrives; all from a seed."""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from app.bench.words import words


@dataclass(frozen=True, slots=True)
class Request:
    """One request. ``prompt_tokens``: what its text takes, about; the server's count is reported.

    at: seconds after the start at which it is due; None: as soon as a stream is free. group: a
    later group begins when all of the group before have ended, where ``at`` is None.
    """

    prompt: str
    prompt_tokens: int
    max_tokens: int
    at: float | None = None
    group: int = 0


@dataclass(frozen=True, slots=True)
class Load:
    """How much of a workload is sent: at most ``concurrency`` streams at once.

    rate: requests a second of an open loop; None: a closed loop, in which a stream sends its
    next request when its last one has ended.
    """

    requests: int
    concurrency: int
    rate: float | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Workload:
    """A named mix of lengths. ``lengths``: prompt and output tokens of one request, drawn.

    bursts: requests arrive as many at once as there are streams, instead of one by one.
    """

    name: str
    about: str
    longest: int
    lengths: Callable[[random.Random], tuple[int, int]]
    bursts: bool = False

    def requests(self, load: Load) -> list[Request]:
        """The requests of one run; equal loads give equal requests."""
        seed = f"{self.name} {load.concurrency} {load.seed}"
        draw = random.Random(seed)
        made = []
        for i in range(load.requests):
            prompt, output = self.lengths(draw)
            text = words(prompt, f"{seed} {i}")
            group = i // load.concurrency if self.bursts else 0
            made.append(Request(text, prompt, output, group=group))
        return made if load.rate is None else arriving(made, load, self.bursts)


def arriving(requests: Sequence[Request], load: Load, bursts: bool = False) -> list[Request]:
    """The requests as a Poisson process of ``load.rate`` requests a second, from its seed.

    bursts: the groups are what arrives, each at once, so rarer by the size of a group.
    """
    draw = random.Random(f"arrivals {load.seed}")
    rate = (load.rate or 1.0) / (load.concurrency if bursts else 1)
    now, last, due = 0.0, 0, []
    for i, request in enumerate(requests):
        if i > 0 and (not bursts or request.group != last):
            now += draw.expovariate(rate)
        last = request.group
        due.append(replace(request, at=now, group=0))
    return due


def longest(requests: Iterable[Request]) -> int:
    """Tokens of the longest prompt with its output."""
    return max(request.prompt_tokens + request.max_tokens for request in requests)


def _chat(draw: random.Random) -> tuple[int, int]:
    """Turns of a conversation: most prompts are short, some carry a history."""
    prompt = min(1024, max(16, round(draw.lognormvariate(4.8, 0.8))))
    return prompt, draw.randint(32, 128)


def _long_prompt(draw: random.Random) -> tuple[int, int]:
    """One in four reads a long document and says little; the others write."""
    if draw.random() < 0.25:
        return draw.randint(1024, 2048), draw.randint(16, 32)
    return draw.randint(32, 64), draw.randint(96, 160)


def _burst(draw: random.Random) -> tuple[int, int]:
    """Requests of one kind that come together."""
    return draw.randint(128, 256), draw.randint(48, 64)


def _decode_heavy(draw: random.Random) -> tuple[int, int]:
    """Short questions, long answers."""
    return draw.randint(16, 48), draw.randint(192, 256)


_ALL = (
    Workload("chat", "prompts of 16 to 1024 tokens, answers of 32 to 128", 1152, _chat),
    Workload(
        "long-prompt",
        "one prompt in four of 1024 to 2048 tokens among streams that write",
        2080,
        _long_prompt,
    ),
    Workload(
        "burst",
        "prompts of 128 to 256 tokens, all streams at once, answers of 48 to 64",
        320,
        _burst,
        bursts=True,
    ),
    Workload(
        "decode-heavy", "prompts of 16 to 48 tokens, answers of 192 to 256", 304, _decode_heavy
    ),
)
WORKLOADS = {workload.name: workload for workload in _ALL}
