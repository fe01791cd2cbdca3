"""Interleaved timing on a clock of its own."""

from collections.abc import Callable

from engine.export.tuning.sampling import WARM_UP, Effort, sample


class Machine:
    """A clock, and work that moves it. From ``slow_from`` on everything takes ten times as long."""

    def __init__(self, slow_from: float = 1e9) -> None:
        self.now = 0.0
        self.slow_from = slow_from
        self.calls: list[str] = []

    def clock(self) -> float:
        return self.now

    def work(self, name: str, seconds: float) -> Callable[[], None]:
        def run() -> None:
            self.calls.append(name)
            self.now += seconds * (10 if self.now >= self.slow_from else 1)

        return run


FULL = Effort(12, 12, 1e9, early=False)


def test_every_round_runs_every_option_once_in_a_drawn_order() -> None:
    machine = Machine()
    options = [machine.work(name, 1.0) for name in "abc"]
    samples = sample(options, FULL, 7, machine.clock)
    assert [len(times) for times in samples] == [12, 12, 12]
    kept = machine.calls[3 * WARM_UP :]
    rounds = [tuple(kept[i : i + 3]) for i in range(0, len(kept), 3)]
    assert all(sorted(calls) == list("abc") for calls in rounds)
    assert len(set(rounds)) > 2
    again = Machine()
    sample([again.work(name, 1.0) for name in "abc"], FULL, 7, again.clock)
    assert again.calls == machine.calls


def test_a_machine_that_slows_down_meets_all_alike() -> None:
    machine = Machine(slow_from=30.0)
    fast, slow = sample([machine.work("a", 1.0), machine.work("b", 1.5)], FULL, 1, machine.clock)
    ratios = [b / a for a, b in zip(fast, slow, strict=True)]
    assert sorted(ratios)[len(ratios) // 2] == 1.5


def test_sampling_stops_when_it_is_settled_or_out_of_time() -> None:
    machine = Machine()
    early = Effort(9, 60, 1e9, early=True)
    samples = sample([machine.work("a", 1.0), machine.work("b", 0.5)], early, 1, machine.clock)
    assert len(samples[0]) == 9
    late = Effort(9, 60, 20.0, early=False)
    samples = sample([machine.work("a", 1.0), machine.work("b", 1.0)], late, 1, machine.clock)
    assert len(samples[0]) == 11
