"""Overheads fitted to a run that was measured."""

from pathlib import Path

import pytest

from app.bench.calibrate import LIMITS, fitted, together
from app.bench.drive import Outcome
from app.bench.endpoint import Counters, counters
from app.bench.forecast import OVERHEADS
from app.bench.measure import Measured
from engine.simulation import Overheads, Simulated, Simulator
from tests.unit.predict.test_simulation import core, request, simulator  # noqa: F401

LOAD = [request(20, 3), request(40, 12), request(30, 7)]


def measured(seconds: float, durations: dict[str, float]) -> Measured:
    return Measured(2, 0, Outcome(seconds, (), ()), {}, Counters(durations=durations))


def run(at: Simulator) -> Simulated:
    return at.run(LOAD, 2)


@pytest.mark.parametrize("mixed", [True, False])
def test_factors_and_rest_are_found_again(core: Path, mixed: bool) -> None:  # noqa: F811
    plain = run(simulator(core, mixed))
    took = {"decode": 2.0 * plain.device["decode"], "mixed": 1.5 * plain.device["prompt"]}
    found = fitted(plain, measured(sum(took.values()) + 0.001 * plain.steps, took))
    assert (found.decode, found.prompt) == pytest.approx((2.0, 1.5))
    assert found.step == pytest.approx(0.001)
    assert (found.request, found.token) == (OVERHEADS.request, 0.0)
    again = run(simulator(core, mixed, Overheads(0.0, 0.001, 0.0, 2.0, 1.5)))
    assert again.device == pytest.approx(plain.device)
    assert again.seconds == pytest.approx(sum(took.values()) + 0.001 * plain.steps)


def test_a_run_that_says_nothing_changes_nothing(core: Path) -> None:  # noqa: F811
    plain = run(simulator(core, False))
    assert fitted(plain, measured(1.0, {})) == OVERHEADS
    only_decode = fitted(plain, measured(0.0, {"decode": plain.device["decode"]}))
    assert (only_decode.prompt, only_decode.step) == (1.0, 0.0)


def test_factors_have_bounds(core: Path) -> None:  # noqa: F811
    plain = run(simulator(core, False))
    found = fitted(plain, measured(1e6, {"decode": 1e6, "prefill": 1e-9}))
    assert (found.prompt, found.decode) == LIMITS


def test_one_disturbed_run_moves_little_and_prompts_are_each_familys_own() -> None:
    def fits(prompt: float) -> list[Overheads]:
        decodes = (1.0, 1.1, 2.5)
        return [Overheads(0.003, 0.0001, 0.0, decode, prompt * decode) for decode in decodes]

    found = together({"separate": fits(0.9), "mixed": fits(1.2)})
    assert [fit.decode for fit in found.values()] == [1.1, 1.1]
    assert found["separate"].prompt == pytest.approx(0.99)
    assert found["mixed"].prompt == pytest.approx(1.32)
    assert found["mixed"].step == 0.0001 and found["mixed"].request == 0.003


def test_seconds_of_steps_are_read_and_grow() -> None:
    text = (
        "# TYPE flare_step_duration_seconds histogram\n"
        'flare_step_duration_seconds_sum{{kind="decode"}} {}\n'
    )
    before, after = counters(text.format(1.5)), counters(text.format(4.0))
    assert after.since(before).durations == {"decode": 2.5}
