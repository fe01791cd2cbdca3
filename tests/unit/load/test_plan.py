"""The rank plan: every rank is told the same, and it survives JSON."""

import pytest
from msgspec.structs import replace

from engine.core.errors import FormatError
from engine.core.schema import Family
from engine.load.budget import plan_budget
from engine.load.plan import RankPlan, parse_rank_plan, rank_plans
from engine.load.select import LoadLimits, select
from tests.support.cores import CoreSpec, manifest

LIMITS = LoadLimits(4, 256, 32)


def plans(requested: bool | None, world_size: int = 2) -> tuple[RankPlan, ...]:
    m = manifest(CoreSpec())
    selection = select(m.catalog, m.default_mixed, requested, LIMITS)
    budget = plan_budget(m.model.kv, LIMITS, 0, 0, 1 << 30, 3 * m.model.kv.bytes_per_block)
    return rank_plans("/cores/a", m.root_digest, world_size, selection, LIMITS, budget)


@pytest.mark.parametrize("requested", [None, True, False])
def test_the_selection_reaches_every_rank(requested: bool | None) -> None:
    first, second = plans(requested)
    assert (first.rank, second.rank) == (0, 1)
    assert replace(second, rank=0) == first
    assert first.requested is requested
    mixed = requested is not False
    assert first.family is (Family.MIXED if mixed else Family.SEPARATE)
    assert ("mixed-8" in first.retained) is mixed
    assert (first.num_blocks, first.max_model_len) == (3, 192)


def test_json_round_trip() -> None:
    for requested in (None, True, False):
        for plan in plans(requested):
            assert parse_rank_plan(plan.to_json()) == plan


def test_a_damaged_plan_names_the_key() -> None:
    text = plans(None)[0].to_json()
    with pytest.raises(FormatError, match="rank plan: family: expected one of separate, mixed"):
        parse_rank_plan(text.replace('"mixed"', '"both"', 1))
