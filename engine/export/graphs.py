"""Which graphs a core holds: kinds and capacities for the limits it is exported for."""

from msgspec import Struct

from engine.core.schema import FAMILY_OF_KIND, Family, Kind, Limits
from engine.ir.program import Domain

PREFILL_STEPS = (32, 4)
MIXED_STEPS = (64, 4)
DECODE_STEPS = (1, 2)
"""Smallest capacity and the ratio to the next one; the limit itself is always the last."""
LADDER = "heuristic: powers of two up to the limit"
"""Why these capacities, for people."""
LOGITS_ROWS = 64
"""Logits rows that a prefill or mixed graph takes at least, for log probabilities of prompts."""


class GraphShape(Struct, frozen=True):
    """One graph to capture."""

    id: str
    kind: Kind
    domain: Domain

    @property
    def family(self) -> Family:
        return FAMILY_OF_KIND[self.kind]


def plan_graphs(limits: Limits, mixed: bool) -> tuple[GraphShape, ...]:
    """Return the graphs in the order of capture: decode, prefill, then mixed when wanted.

    decode: a row, a segment and a logits row per sequence. prefill: a segment per sequence.
    mixed: two segments per sequence at most (one of each role); one logits row per sequence.
    """
    shapes = [
        _shape(Kind.DECODE, rows, rows, rows)
        for rows in _ladder(*DECODE_STEPS, limits.max_num_seqs)
    ]
    logits = max(LOGITS_ROWS, limits.max_num_seqs)
    for rows in _ladder(*PREFILL_STEPS, limits.max_step_tokens):
        shapes.append(_shape(Kind.PREFILL, rows, limits.max_num_seqs, logits))
    if mixed:
        for rows in _ladder(*MIXED_STEPS, limits.max_step_tokens):
            shapes.append(_shape(Kind.MIXED, rows, 2 * limits.max_num_seqs, logits))
    return tuple(shapes)


def _shape(kind: Kind, tokens: int, seqs: int, logits: int) -> GraphShape:
    domain = Domain(tokens, min(tokens, seqs), min(tokens, logits))
    return GraphShape(f"{kind.value}-{tokens}", kind, domain)


def _ladder(first: int, ratio: int, last: int) -> list[int]:
    """first, first * ratio ... below ``last``, then ``last``."""
    steps = []
    while first < last:
        steps.append(first)
        first *= ratio
    return [*steps, last]
