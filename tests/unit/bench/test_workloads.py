"""Workloads and traces: equal seeds give equal requests, arrivals, and errors with line numbers."""

import json
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import pytest

from app.bench.plan import Plan
from app.bench.traces import read_trace, trace_requests
from app.bench.words import WORDS, words
from app.bench.workloads import WORKLOADS, Load
from engine.errors import SettingsError


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_is_its_seed(name: str) -> None:
    workload = WORKLOADS[name]
    load = Load(requests=60, concurrency=8, seed=7)
    made = workload.requests(load)
    assert made == workload.requests(load)
    assert len({request.prompt for request in made}) == 60
    other = workload.requests(Load(60, 8, seed=8))
    cell = workload.requests(Load(60, 4, seed=7))
    assert not {r.prompt for r in made} & {r.prompt for r in [*other, *cell]}
    assert all(len(r.prompt.split()) == r.prompt_tokens for r in made)
    assert max(r.prompt_tokens + r.max_tokens for r in made) <= workload.longest


def test_words_are_distinct_and_drawn_from_the_seed() -> None:
    assert len(set(WORDS)) == len(WORDS) > 300
    assert words(5, 1) == words(5, 1) != words(5, 2)


def test_arrivals_are_poisson_at_the_rate() -> None:
    made = WORKLOADS["decode-heavy"].requests(Load(2000, 8, rate=4.0, seed=1))
    times = [request.at or 0.0 for request in made]
    gaps = [after - before for before, after in pairwise(times)]
    assert times[0] == 0 and min(gaps) >= 0
    assert fmean(gaps) == pytest.approx(0.25, rel=0.1)
    assert sum(gap > 0.25 for gap in gaps) / len(gaps) == pytest.approx(0.368, abs=0.04)  # 1 / e


def test_bursts_come_whole_at_the_same_rate_or_one_after_the_other() -> None:
    burst = WORKLOADS["burst"]
    closed = burst.requests(Load(20, 8))
    assert [request.group for request in closed] == [0] * 8 + [1] * 8 + [2] * 4
    assert all(request.at is None for request in closed)
    timed = burst.requests(Load(4000, 8, rate=16.0, seed=2))
    starts = sorted({request.at or 0.0 for request in timed})
    assert len(starts) == 500 and starts[-1] / 499 == pytest.approx(0.5, rel=0.15)


def trace(path: Path, *lines: object) -> Path:
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_text("\n".join(texts) + "\n")
    return path


def test_a_trace_of_texts(tmp_path: Path) -> None:
    turns = [
        {"from": "system", "value": "Be brief."},
        {"from": "human", "value": "one two three"},
        {"from": "gpt", "value": "a b c d e f"},
    ]
    lines = ({"prompt": "Hello there", "max_tokens": 9}, "", {"conversations": turns})
    plain, talk = read_trace(trace(tmp_path / "t.jsonl", *lines))
    assert (plain.prompt, plain.max_tokens, plain.at) == ("Hello there", 9, None)
    assert (talk.prompt, talk.prompt_tokens, talk.max_tokens) == ("one two three", 4, 8)


def test_a_trace_of_lengths_shares_blocks_by_hash_id_and_keeps_its_times(tmp_path: Path) -> None:
    base = {"output_length": 7}
    path = trace(
        tmp_path / "t.jsonl",
        {**base, "timestamp": 5000, "input_length": 600, "hash_ids": [4, 5]},
        {**base, "timestamp": 6500, "input_length": 700, "hash_ids": [4]},
        {**base, "timestamp": 6000, "input_length": 20},
    )
    first, second, third = read_trace(path)
    assert [len(r.prompt.split()) for r in (first, second, third)] == [600, 700, 20]
    shared = 512
    assert first.prompt.split()[:shared] == second.prompt.split()[:shared]
    assert first.prompt.split()[shared:] != second.prompt.split()[shared:600]
    read = (first, second, third)
    assert [r.at for r in trace_requests(read, Load(3, 1))] == [0.0, 1.5, 1.0]
    assert trace_requests(read, Load(2, 1, rate=1.0))[0].at == 0.0
    assert Plan(read, (1,), 1).longest() == 707
    assert len(Plan(read, (1,), 1, requests=2).made(1, 0)) == 2


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{broken", "line 2: Expecting"),
        ("[1]", "line 2: not an object"),
        ({"text": "x"}, "line 2: it has no prompt"),
        ({"prompt": ""}, "line 2: prompt is not a text"),
        ({"prompt": "x", "max_tokens": 0}, "line 2: max_tokens must be"),
        ({"prompt": "x", "max_tokens": True}, "line 2: max_tokens must be"),
        ({"input_length": 1.5}, "line 2: input_length must be"),
        ({"input_length": 10, "hash_ids": [1, 2]}, "line 2: 2 hash_ids"),
        ({"input_length": 10, "hash_ids": "a"}, "line 2: hash_ids is not"),
        ({"prompt": "x", "timestamp": "now"}, "line 2: timestamp must be"),
        ({"conversations": [{"from": "gpt", "value": "x"}]}, "line 2: conversations has no turn"),
        ({"conversations": "x"}, "line 2: conversations is not"),
        ({"prompt": "x", "timestamp": 1}, "1 of 2 lines have a timestamp"),
    ],
)
def test_a_fault_of_a_trace_is_named_with_its_line(tmp_path: Path, line: object, said: str) -> None:
    path = trace(tmp_path / "t.jsonl", {"prompt": "fine"}, line)
    with pytest.raises(SettingsError, match=said):
        read_trace(path)


def test_a_trace_that_is_missing_or_empty_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot read"):
        read_trace(tmp_path / "none.jsonl")
    with pytest.raises(SettingsError, match="holds no request"):
        read_trace(trace(tmp_path / "empty.jsonl", ""))


def test_cells_that_a_server_cannot_run_are_refused() -> None:
    plan = Plan(WORKLOADS["chat"], (4, 64, 128), 1)
    with pytest.raises(SettingsError, match=r"--concurrency 64,128: .* at most 32"):
        plan.check(32, 8192)
    with pytest.raises(SettingsError, match="up to 1152 tokens"):
        plan.check(128, 1024)
    plan.check(128, 1152)
