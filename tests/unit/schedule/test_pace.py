"""Chunks beside decode rows last about as long as asked for, at any depth."""

from math import inf

import pytest

from engine.schedule.output import SchedulerOutput, Segment
from engine.schedule.pace import GRAIN, Pace
from tests.support.policy import Policy

DEPTH = 1000.0
ROW, KEY, DECODE = 2e-4, 1e-4, 0.008
"""A machine's seconds per row, per row whose position is DEPTH, and of the decode rows."""


def took(output: SchedulerOutput) -> float:
    """Seconds of a step on the made-up machine."""
    total = DECODE if output.decodes else 0.0
    for s in output.prompts:
        total += s.count * (ROW + KEY * (s.start + s.count / 2) / DEPTH)
    return total


def policy(target: float) -> Policy:
    return Policy(2048, 16, 16, 512, prefix_cache=False, pace=Pace(target, DEPTH))


def step(policy: Policy) -> tuple[SchedulerOutput, float]:
    """One step, and what it took."""
    output = policy.scheduler.schedule()
    seconds = took(output)
    policy.finish(output, seconds)
    return output, seconds


def prefill(policy: Policy) -> list[tuple[SchedulerOutput, float]]:
    """Step while there are prompt rows."""
    steps = [step(policy)]
    while steps[-1][0].prompts:
        steps.append(step(policy))
    return steps[:-1]


def test_steps_beside_decode_rows_last_as_long_as_asked_for() -> None:
    served = policy(0.08)
    for _ in range(4):
        served.add([1] * 256, 400)
    prefill(served)
    for _ in range(30):
        step(served)
    served.add([1] * 4096, 4)
    steps = prefill(served)
    counts = [output.prompts[0].count for output, _ in steps]
    assert sum(counts) == 4096
    assert all(seconds < 0.095 for _, seconds in steps)
    assert all(seconds > 0.06 for _, seconds in steps[2:-1])
    assert counts[0] > 1.5 * counts[-2], "chunks become shorter where attention is deep"
    assert all(count % GRAIN == 0 for count in counts[:-1])


def test_prompts_alone_fill_their_step() -> None:
    served = policy(0.01)
    served.add([1] * 2048, 4)
    assert [output.prompts[0].count for output, _ in prefill(served)] == [512] * 4


def test_slow_decode_rows_never_starve_a_prompt() -> None:
    pace = Pace(0.01, DEPTH)
    sequence = Policy().add([1] * 64, 4)
    decode = SchedulerOutput(decodes=(Segment(sequence, 64, 1, True, True),))
    for _ in range(50):
        pace.observe(decode, 1.0)
    pace.observe(SchedulerOutput(prompts=(Segment(sequence, 0, 64, False, True),)), 0.5)
    assert pace.seconds() == pytest.approx(2.0, rel=1e-3)
    assert pace.rows(0, pace.seconds()) > 128
    assert pace.rows(1_000_000, 1e-9) == GRAIN


def test_nothing_is_cut_before_a_step_was_measured() -> None:
    pace = Pace(0.01, DEPTH)
    assert pace.seconds() == inf
    assert pace.rows(0, inf) > 1_000_000


def test_several_prompts_share_a_step() -> None:
    served = policy(0.08)
    served.add([1] * 512, 100)
    prefill(served)
    for _ in range(8):
        served.add([1] * 100, 4)
    steps = prefill(served)
    assert len(steps[0][0].prompts) > 1
    assert all(seconds < 0.1 for _, seconds in steps)
