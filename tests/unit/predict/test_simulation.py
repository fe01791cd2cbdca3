"""Serving on a virtual clock: times that can be told by hand, and the rules of a run."""

from itertools import pairwise
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.core.schema import Family
from engine.errors import ContextLengthError, SelectionError
from engine.simulation import Overheads, SimulatedRequest, Simulator, StepTimesMissingError
from tests.support.cores import CoreSpec, write_core
from tests.unit.predict.test_steptimes import TIMES, decode_seconds, mixed_seconds, prefill_seconds

NONE = Overheads()


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cores") / "timed.core"
    return write_core(path, CoreSpec(max_model_len=256), step_times=TIMES)


def simulator(core: Path, mixed: bool, overheads: Overheads = NONE, **config: object) -> Simulator:
    settings = {"mixed_prefill": mixed, "kv_cache_bytes": 1 << 24, **config}
    return Simulator(EngineConfig(core=core, **settings), overheads)  # type: ignore[arg-type]


def request(tokens: int, output: int, at: float | None = None, group: int = 0) -> SimulatedRequest:
    return SimulatedRequest(tuple((7 * i + tokens) % 80 for i in range(tokens)), output, at, group)


@pytest.mark.parametrize("mixed", [True, False])
def test_one_request_takes_a_chunk_and_its_decodes(core: Path, mixed: bool) -> None:
    overheads = Overheads(request=0.003, step=0.001, token=0.0001)
    run = simulator(core, mixed, overheads).run([request(20, 3)], 1)
    first = 0.003 + prefill_seconds(20, 10.5) + 0.0011
    second = first + decode_seconds(1, 21) + 0.0011
    third = second + decode_seconds(1, 22) + 0.0011
    [answer] = run.answers
    assert answer.due == 0.0
    assert answer.arrivals == pytest.approx((first, second, third), rel=0.01)
    assert run.seconds == answer.arrivals[-1]
    assert run.launches == {"prefill": 1, "decode": 2} and run.steps == 3


def test_families_differ_where_chunks_meet_decodes(core: Path) -> None:
    """The second request's chunk comes in a step with the first one's decode row."""
    load = [request(8, 40, at=0.0), request(20, 2, at=0.004)]
    runs = {mixed: simulator(core, mixed).run(load, 2) for mixed in (True, False)}
    assert runs[True].family is Family.MIXED and runs[False].family is Family.SEPARATE
    assert runs[True].launches["mixed"] == 1 and "mixed" not in runs[False].launches

    def slowest_gap(mixed: bool) -> float:
        times = runs[mixed].answers[0].arrivals
        return max(b - a for a, b in pairwise(times))

    keys = 10  # of the first one's decode row, about
    expected = {
        True: mixed_seconds(1, keys, 20, 10.5),
        False: decode_seconds(1, keys) + prefill_seconds(20, 10.5),
    }
    for mixed, seconds in expected.items():
        assert slowest_gap(mixed) == pytest.approx(seconds, rel=0.02)


def test_streams_send_their_next_request_when_one_has_ended(core: Path) -> None:
    run = simulator(core, True).run([request(5 + i, 4) for i in range(6)], 2)
    due = [answer.due for answer in run.answers]
    ends = sorted(answer.arrivals[-1] for answer in run.answers)
    assert due[:2] == [0.0, 0.0]
    assert due[2:] == ends[:4]
    assert all(len(answer.arrivals) == 4 for answer in run.answers)


def test_what_the_pace_has_learnt_holds_for_the_next_load(core: Path) -> None:
    """A chunk beside a decode row is cut once a step with prompt rows was seen."""
    load = [request(8, 40, at=0.0), request(120, 2, at=0.004)]
    fresh, paced = (simulator(core, True, stall_seconds=0.002) for _ in range(2))
    paced.run([request(64, 2)], 1)
    assert paced.run(load, 2).launches["mixed"] > fresh.run(load, 2).launches["mixed"]


def test_a_later_group_waits_for_all_of_the_one_before(core: Path) -> None:
    load = [request(5, 3 + 10 * (i == 0), group=i // 2) for i in range(4)]
    run = simulator(core, True).run(load, 4)
    assert run.answers[2].due == run.answers[3].due == run.answers[0].arrivals[-1]


def test_arrivals_are_kept_and_count_from_when_they_were_due(core: Path) -> None:
    run = simulator(core, True).run([request(5, 30, at=0.5), request(5, 2, at=0.501)], 1)
    assert [answer.due for answer in run.answers] == [0.5, 0.501]
    assert run.answers[0].arrivals[0] > 0.5
    assert run.answers[1].arrivals[0] > run.answers[0].arrivals[-1]


def test_equal_loads_give_equal_runs(core: Path) -> None:
    load = [request(3 + 9 * i % 60, 5 + i, group=i // 3) for i in range(9)]
    assert simulator(core, True).run(load, 3) == simulator(core, True).run(load, 3)


def test_a_small_cache_preempts(core: Path) -> None:
    """Blocks for five, and four sequences that grow to two blocks each."""
    bytes_per_block = CoreSpec().model().kv.bytes_per_block
    tight = simulator(core, True, kv_cache_bytes=5 * bytes_per_block, prefix_cache=False)
    run = tight.run([request(50 + i, 40) for i in range(4)], 4)
    assert run.preemptions > 0
    assert all(len(answer.arrivals) == 40 for answer in run.answers)


def test_a_core_without_step_times_says_how_to_get_them(tmp_path: Path) -> None:
    bare = write_core(tmp_path / "bare.core")
    with pytest.raises(StepTimesMissingError, match="no step times of decode-1, ") as caught:
        simulator(bare, True)
    assert "--step-times" in (caught.value.hint or "")


def test_what_a_run_refuses_is_refused(core: Path, tmp_path: Path) -> None:
    with pytest.raises(ContextLengthError):
        simulator(core, True).run([request(250, 20)], 1)
    separate = write_core(tmp_path / "s.core", CoreSpec(mixed=(), default_mixed=False))
    with pytest.raises(SelectionError):
        simulator(separate, True)
