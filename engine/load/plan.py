"""The rank plan: all that a rank is told about the selection, as JSON."""

import json

from msgspec import Struct

from engine.core.schema import DeviceName, Family
from engine.core.strict import decode_with, decoder_for, encode, parse_json
from engine.load.budget import Budget
from engine.load.select import LoadLimits, Selection
from engine.types import Speculative


class RankPlan(Struct, frozen=True):
    """What one rank loads and serves. Equal on all ranks but for ``rank``.

    catalog_digest: the core's root digest; a rank compares it with the core that it opened.
    retained: graph ids that it instantiates. num_blocks, max_model_len: from the budget that
    all ranks agreed on.
    """

    rank: int
    world_size: int
    core: str
    catalog_digest: str
    device: DeviceName
    requested: bool | None
    family: Family
    retained: tuple[str, ...]
    max_num_seqs: int
    max_model_len: int
    max_step_tokens: int
    num_blocks: int
    speculative: Speculative = "off"
    draft_tokens: int = 0

    def to_json(self) -> str:
        """Return the plan as JSON."""
        return json.dumps(encode(self), allow_nan=False)


def rank_plans(
    core: str,
    catalog_digest: str,
    world_size: int,
    selection: Selection,
    limits: LoadLimits,
    budget: Budget,
) -> tuple[RankPlan, ...]:
    """Return one plan per rank, forwarding the selection and the limits."""
    return tuple(
        RankPlan(
            rank,
            world_size,
            core,
            catalog_digest,
            limits.device,
            selection.requested,
            selection.family,
            selection.retained,
            limits.max_num_seqs,
            budget.max_model_len,
            limits.max_step_tokens,
            budget.num_blocks,
            limits.speculative,
            limits.draft_tokens,
        )
        for rank in range(world_size)
    )


def parse_rank_plan(text: str) -> RankPlan:
    """Decode a plan. Raises FormatError naming the key."""
    where = "rank plan"
    plan: RankPlan = decode_with(decoder_for(RankPlan), parse_json(text.encode(), where), where)
    return plan
