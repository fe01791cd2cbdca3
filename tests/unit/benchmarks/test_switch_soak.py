"""What the soak of live switches concludes from gaps."""

import random

from benchmarks.soak.switches import ALLOWED, Tally, added_steps, excess


def gaps(seed: int, shift: float = 0.0) -> list[float]:
    """Longest gaps in steps: most near one, some long ones of prompt chunks and of the machine."""
    draw = random.Random(seed)
    return [1 + shift + draw.expovariate(4) + 2 * (draw.random() < 0.1) for _ in range(1000)]


def test_the_loads_own_long_gaps_are_not_the_switch() -> None:
    tally = Tally(during=gaps(1), between=gaps(2))
    assert sum(gap > 3 for gap in tally.between) > 50
    assert added_steps(tally) == 0


def test_what_a_switch_adds_is_found() -> None:
    for shift in (1.0, 2.5, 4.0):
        tally = Tally(during=gaps(1, shift), between=gaps(2))
        assert shift - 0.5 <= added_steps(tally) <= shift + 0.25
        assert (excess(tally, ALLOWED) > 0) == (shift > ALLOWED)


def test_one_switch_in_thirty_that_adds_much_is_found() -> None:
    during = gaps(1)
    during[::30] = [gap + 9 for gap in during[::30]]
    assert added_steps(Tally(during=during, between=gaps(2))) > ALLOWED
