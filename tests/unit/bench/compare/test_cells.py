"""Cells: which are made, which are refused, and by name."""

from dataclasses import replace

import pytest

from app.bench.compare.cells import blocks, check_cells, fixed_prompts, grid_cells, load_cells
from app.bench.workloads import Load, Request
from engine.errors import SettingsError
from tests.support.comparisons import plan


def test_cells_that_cannot_run_as_meant_are_all_named() -> None:
    cells = load_cells(plan(8, 64, 65, 100))
    check_cells(cells[:2], 64, 8192)
    with pytest.raises(SettingsError) as refused:
        check_cells(cells, 64, 8192)
    assert "2 of 4 cells" in str(refused.value)
    assert "chat at 65 (more streams than the 64" in str(refused.value)
    assert "chat at 100" in str(refused.value) and "chat at 8 " not in str(refused.value)
    assert refused.value.exit_code == 2


def test_requests_that_do_not_fit_and_too_few_requests_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"chat at 8 \(requests of 1152 tokens, .* of 1024"):
        check_cells(load_cells(plan(8)), 64, 1024)
    trace = (Request("a b", 2, 4),) * 3
    short = replace(plan(2, 4), source=trace)
    with pytest.raises(SettingsError, match=r"trace at 4 \(fewer requests than streams"):
        check_cells(load_cells(short), 64, 1024)
    with pytest.raises(SettingsError, match="fewer requests than streams"):
        check_cells(load_cells(plan(8, requests=7)), 64, 8192)


def test_a_grid_has_every_pair_of_length_and_streams_and_refuses_some() -> None:
    cells = grid_cells(plan(2, 8), (64, 4000), 32)
    assert [(c.prompt_tokens, c.concurrency) for c in cells] == [
        *((64, 2), (64, 8), (4000, 2), (4000, 8))
    ]
    assert len({cell.name for cell in cells}) == 4
    with pytest.raises(SettingsError) as refused:
        check_cells(cells, 4, 2048)
    assert "3 of 4 cells" in str(refused.value)


def test_prompts_of_a_grid_have_one_length_and_answers_vary() -> None:
    made = fixed_prompts(64, 32).requests(Load(40, 4))
    assert {request.prompt_tokens for request in made} == {64}
    outputs = {request.max_tokens for request in made}
    assert len(outputs) > 5 and min(outputs) >= 16 and max(outputs) <= 48
    assert fixed_prompts(64, 1).requests(Load(2, 1))[0].max_tokens == 1


def test_a_closed_loop_is_cut_into_whole_blocks_and_arrival_times_are_not() -> None:
    loop = [Request(f"{i}", 1, 1) for i in range(21)]
    assert [len(part) for part in blocks(loop, 2)] == [8, 13]
    assert [one for part in blocks(loop, 2) for one in part] == loop
    assert [len(part) for part in blocks(loop[:3], 2)] == [3]
    timed = [replace(one, at=0.1) for one in loop]
    assert blocks(timed, 2) == [timed]
