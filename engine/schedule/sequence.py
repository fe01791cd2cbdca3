"""A sequence's state: few counters, the rest derived."""

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from engine.cache.kv import BlockTable
from engine.schedule.drafts import NgramDrafter
from engine.types import GenerationRequest

NO_SLOT = -1


class Sequence(Struct, eq=False):
    """One request being served.

    Positions of the original prompt have the prompt role, all later ones the generated role, for
    ever: a preempted sequence is recomputed as prompt chunks, then as generated chunks.
    stops: the ids that end it, the model's end tokens included unless it ignores them.
    computed: positions whose keys and values are in the cache. slot: row of the runner's tables
    and of the sampler, held while running. cached: prompt tokens that the prefix cache gave.
    drafter: proposes its drafts, once there were any to propose.
    """

    request: GenerationRequest
    arrival: int
    prompt: NDArray[np.int32]
    table: BlockTable
    stops: frozenset[int] = frozenset()
    output: list[int] = field(default_factory=list)
    computed: int = 0
    slot: int = NO_SLOT
    cached: int = 0
    prompt_len: int = 0
    drafter: NgramDrafter | None = None

    def __post_init__(self) -> None:
        self.prompt_len = len(self.prompt)

    @property
    def known(self) -> int:
        """Tokens known: prompt and sampled."""
        return self.prompt_len + len(self.output)

    @property
    def left(self) -> int:
        """Tokens that may still be sampled."""
        return self.request.sampling.max_tokens - len(self.output)

    @property
    def order(self) -> tuple[int, int]:
        """First come, first served, within a priority."""
        return (self.request.priority, self.arrival)

    @property
    def running(self) -> bool:
        return self.slot != NO_SLOT

    @property
    def generated(self) -> bool:
        """Whether the next position to compute has the generated role."""
        return self.computed >= self.prompt_len

    @property
    def decoding(self) -> bool:
        """Whether just the last sampled token is left to compute."""
        computed = self.computed
        return computed >= self.prompt_len and computed + 1 == self.prompt_len + len(self.output)

    @property
    def chunk_left(self) -> int:
        """Rows that one segment may take: a segment never crosses the role border."""
        end = self.known if self.generated else self.prompt_len
        return end - self.computed

    @property
    def scores_prompt(self) -> bool:
        """Whether prompt rows must give log probabilities (until the first token is out)."""
        return self.request.sampling.prompt_logprobs is not None and not self.output
