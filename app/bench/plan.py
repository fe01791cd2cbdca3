"""What is measured: the source of requests, the cells, repeats, and the objective."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from app.bench.figures import Objective
from app.bench.traces import trace_requests
from app.bench.words import words
from app.bench.workloads import Load, Request, Workload
from engine.errors import SettingsError

FIRST_SEED = 1
WARM_OUTPUT = 8
WARM_REPEAT = -1  # a seed that no measured repeat has


@dataclass(frozen=True, slots=True)
class Plan:
    """One measurement: ``source`` at each of ``concurrency`` streams, ``repeats`` times.

    requests: of one repeat; None: four for each stream, or the whole trace. rate: see ``Load``.
    """

    source: Workload | Sequence[Request]
    concurrency: tuple[int, ...]
    repeats: int
    requests: int | None = None
    rate: float | None = None
    objective: Objective | None = None
    seed: int = FIRST_SEED
    timeout_s: float = 600.0
    output: Path | None = None

    @property
    def name(self) -> str:
        """Of the workload; ``trace`` for a trace."""
        return self.source.name if isinstance(self.source, Workload) else "trace"

    def load(self, concurrency: int, repeat: int) -> Load:
        """The load of one repeat. Each has a seed of its own, so that no prompt comes twice."""
        whole = 4 * concurrency if isinstance(self.source, Workload) else len(self.source)
        return Load(self.requests or whole, concurrency, self.rate, self.seed + repeat)

    def made(self, concurrency: int, repeat: int) -> list[Request]:
        """The requests of one repeat: equal for equal plans."""
        load = self.load(concurrency, repeat)
        if isinstance(self.source, Workload):
            return self.source.requests(load)
        return trace_requests(self.source, load)

    def warming(self, concurrency: int) -> list[Request]:
        """All streams at once, with the cell's lengths, short answers and other prompts."""
        return [
            Request(words(r.prompt_tokens, f"warm {i}"), r.prompt_tokens, WARM_OUTPUT)
            for i, r in enumerate(self.made(concurrency, WARM_REPEAT)[:concurrency])
        ]

    def longest(self) -> int:
        """Tokens that the longest request takes, prompt and output."""
        if isinstance(self.source, Workload):
            return self.source.longest
        taken = self.source[: self.requests]
        return max(request.prompt_tokens + request.max_tokens for request in taken)

    def check(self, max_num_seqs: int, max_model_len: int) -> None:
        """Refuse cells that the server cannot run as they are meant. Raises SettingsError."""
        above = [n for n in self.concurrency if n > max_num_seqs]
        if above:
            raise SettingsError(
                f"--concurrency {','.join(map(str, above))}: the server runs at most "
                f"{max_num_seqs} sequences at once, the rest would measure its queue",
                f"give at most {max_num_seqs}, or a server with a larger max_num_seqs",
            )
        if self.longest() > max_model_len:
            raise SettingsError(
                f"{self.name} asks for up to {self.longest()} tokens, prompt and output; "
                f"the server takes {max_model_len}",
                "choose another workload, or a server with a larger max_model_len",
            )
