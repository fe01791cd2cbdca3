"""``flare bench`` against a server: table, report, counters, and its errors."""

import json
import socket
from pathlib import Path

import pytest

from app import cli
from app.config import ServerConfig
from tests.support.application import served
from tests.support.scripted import Behaviour

TRACE = [{"input_length": 12 + i, "output_length": 3 + i % 2} for i in range(6)]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in TRACE))
    return path


@pytest.mark.parametrize("mixed", [True, False])
def test_bench_measures_what_it_sent(
    mixed: bool, trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Replays that take a while: requests of one cell meet in a step.
    behaviour = Behaviour(delay=0.01)
    with served(None, behaviour, mixed=mixed, max_model_len=512, num_blocks=200) as server:
        options = ["--trace", str(trace), "--concurrency", "2,4", "--repeats", "2"]
        objective = ["--slo-ttft", "60", "--slo-gap", "60"]
        output = ["--output", str(tmp_path / "out")]
        assert cli.main(["bench", "--base-url", server.url, *options, *objective, *output]) == 0
    said = capsys.readouterr()
    assert "scripted, trace, streams at once" in said.out
    assert "first token p99, ms" in said.out and "decode launches" in said.out
    assert said.err.count("repeat 2 of 2") == 2
    report = json.loads((tmp_path / "out/report.json").read_text())
    assert report["object"] == "bench" and report["server"]["model"] == "scripted"
    assert report["plan"]["requests"] == [6, 6]
    assert [(r["concurrency"], r["repeat"]) for r in report["runs"]] == [
        *((2, 0), (2, 1), (4, 0), (4, 1))
    ]
    for run in report["runs"]:
        assert [r["tokens"] for r in run["requests"]] == [t["output_length"] for t in TRACE]
        assert run["failures"] == []
        assert run["figures"]["goodput"] == pytest.approx(run["figures"]["req_s"])
        assert run["graph_launches"]["decode"] > 0
        assert ("mixed" in run["graph_launches"]) == mixed
    # A first repeat computes all prompts (the second finds them in the prefix cache).
    assert report["runs"][0]["prefix_cache_hit_tokens"] == 0


def test_bench_sends_its_key(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = ServerConfig(api_keys=("secret",))
    with served(config, max_model_len=512, num_blocks=200) as server:
        options = ["bench", "--base-url", server.url, "--trace", str(trace), "--repeats", "1"]
        options += ["--concurrency", "4"]
        assert cli.main(options) == 2
        assert "--api-key" in capsys.readouterr().err
        assert cli.main([*options, "--api-key", "secret"]) == 0


def test_cells_and_requests_that_cannot_be_are_refused(
    tmp_path: Path, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with served(max_model_len=64) as server:
        options = ["bench", "--base-url", server.url, "--concurrency", "4,5"]
        assert cli.main([*options, "--trace", str(trace)]) == 2
        assert "--concurrency 5: the server runs at most 4" in capsys.readouterr().err
        long = tmp_path / "long.jsonl"
        long.write_text('{"input_length": 400, "output_length": 4}\n')
        assert cli.main([*options[:-1], "1", "--trace", str(long)]) == 1
        assert "all 1 requests failed; the first: HTTP 400" in capsys.readouterr().err


def test_a_server_that_is_not_there_is_2(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        assert cli.main(["bench", "--base-url", url]) == 2
    assert f"{url}/v1/models" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--concurrency", "0"], "--concurrency"),
        (["--concurrency", "8,x"], "--concurrency"),
        (["--rate", "0"], "--rate"),
        (["--slo-ttft", "1"], "--slo-gap"),
        (["--workload", "chat", "--trace", "x"], "--trace and --workload"),
        (["--trace", "missing.jsonl"], "missing.jsonl"),
    ],
)
def test_options_are_checked_before_anything_is_sent(
    options: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bench", "--base-url", "http://127.0.0.1:9", *options]) == 2
    assert named in capsys.readouterr().err
