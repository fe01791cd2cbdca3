"""``flare compare`` on an exported core: report, refusals, and an interruption."""

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from app import cli
from app.bench.compare.report import Report, from_json
from app.bench.forecast import OVERHEADS
from tests.support.checkpoints import complete_hf
from tests.support.process import flare, server_process

LIMITS = ["--max-num-seqs", "4", "--max-step-tokens", "64"]
LINES = [  # of two streams, one writes for long: the other's next prompt arrives meanwhile
    {"prompt": "hello world", "output_length": 6},
    {"prompt": "a", "output_length": 60},
    {"prompt": "one two three four five six seven " * 6, "output_length": 4},
    {"prompt": "once upon a time", "output_length": 8},
]


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compare")
    complete_hf(folder / "model")
    path = folder / "mixed.core"
    arguments = ["export", str(folder / "model"), "--output", str(path), *LIMITS]
    assert cli.main([*arguments, "--quantization", "int8"]) == 0
    return path


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return path


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLARE_KV_CACHE_MEMORY", "32MiB")
    monkeypatch.setenv("FLARE_THREADS", "1")


def compared(core: Path, output: Path, *options: str) -> Report:
    quick = ["--confidence", "0.5", "--repeats", "4", "--output", str(output)]
    assert cli.main(["compare", str(core), *quick, *options]) == 0
    return from_json((output / "report.json").read_text())


def test_both_families_answer_the_same_and_launch_their_own_graphs(
    core: Path, trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.read_bytes() for path in core.rglob("*") if path.is_file()}
    found = compared(core, tmp_path, "--trace", str(trace), "--concurrency", "2")
    assert {path: path.read_bytes() for path in before} == before
    assert found.complete and found.verdict.kind != "invalid"
    assert (found.texts.compared, found.texts.different) == (16, 0)
    (cell,) = found.cells
    separate, mixed = cell.counted["separate"], cell.counted["mixed"]
    assert separate.launches["prefill"] > 0 and "mixed" not in separate.launches
    assert mixed.launches["mixed"] > 0
    # every pair once in either order, and a third server started with each
    places = {(s.pair, s.leg): s.order for s in found.samples}
    assert [places[pair, "mixed"] for pair in range(4)] == [1, 0, 1, 0]
    legs = found.loading.legs
    assert {leg: held.starts for leg, held in legs.items()} == {
        "separate": 4,
        "mixed": 4,
        "separate, live switch": 4,
    }
    assert legs["separate"].held_bytes == legs["mixed"].held_bytes == 0
    assert legs["separate"].pruned["mixed"] > 0 and sum(legs["mixed"].pruned.values()) == 0
    assert all(found.cells[0].find(name) for name in ("tok_s", "gap_p99", "ttft_p90", "peak_mib"))
    variables = {"FLARE_KV_CACHE_MEMORY": str(32 << 20), "FLARE_THREADS": "1"}
    assert found.setting.variables == variables
    said = capsys.readouterr()
    assert said.out.rstrip().endswith(found.verdict.sentence)
    assert "10 of 10" in said.err and "report.html" in said.err
    assert found.verdict.sentence.split(":")[0] in (tmp_path / "report.html").read_text()


def test_a_core_with_step_times_has_a_forecast_and_its_factors_beside_the_measurement(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    complete_hf(tmp_path / "model")
    path = tmp_path / "timed.core"
    export = ["export", str(tmp_path / "model"), "--output", str(path), *LIMITS, "--step-times"]
    assert cli.main(export) == 0
    found = compared(path, tmp_path / "out", "--trace", str(trace), "--concurrency", "2")
    (cell,) = found.cells
    assert cell.forecast is not None and cell.fit is not None
    assert cell.fit.probes == len(found.samples)  # one for each run, and none of them is counted
    assert {sample.requests for sample in found.samples} == {len(LINES)}
    for leg in ("separate", "mixed"):
        figures, fit = cell.forecast[leg], cell.fit.overheads[leg]
        for name in ("tok_s", "req_s", "ttft_p50", "gap_p50"):
            assert figures[name] > 0 and cell.find(name) is not None
        assert fit.token == 0.0 != OVERHEADS.token  # fitted, not the default
    separate, mixed = (cell.fit.overheads[leg] for leg in ("separate", "mixed"))
    assert (separate.decode, separate.step) == (mixed.decode, mixed.step)
    shown, page = capsys.readouterr().out, (tmp_path / "out" / "report.html").read_text()
    for text in (shown, page):
        assert "orecast" in text and f"fitted to {cell.fit.probes} short runs" in text
        assert f"steps take {mixed.decode:.2f} times" in text


def test_a_heat_map_measures_every_cell_on_one_server(core: Path, tmp_path: Path) -> None:
    options = ["--heatmap", "--prompt-lengths", "8,24", "--output-tokens", "4"]
    found = compared(core, tmp_path, *options, "--concurrency", "2", "--metric", "ttft_mean")
    assert [cell.prompt_tokens for cell in found.cells] == [8, 24]
    assert {sample.cell for sample in found.samples} == {"8 tokens at 2", "24 tokens at 2"}
    assert len(found.starts) == 12
    assert found.setting.decides == ("ttft_mean",)
    assert 'class="heat ' in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--repeats", "7"], "need at least 8"),
        (["--concurrency", "1,2", "--repeats", "8"], "in 2 cells at 99.38 % each need at least 9"),
        (["--confidence", "1"], "--confidence"),
        (["--heatmap", "--workload", "chat"], "--heatmap and --workload"),
        (["--metric", "tok_s"], "--heatmap"),
        (["--heatmap", "--metric", "speed"], "--metric"),
        (["--heatmap", "--prompt-lengths", "8,x"], "--prompt-lengths"),
    ],
)
def test_what_cannot_give_a_verdict_is_refused_before_a_server_starts(
    core: Path, options: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["compare", str(core), *options]) == 2
    assert named in capsys.readouterr().err


def test_cells_beyond_the_core_are_named(
    core: Path, trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "report"
    options = ["--trace", str(trace), "--output", str(output)]
    assert cli.main(["compare", str(core), *options, "--concurrency", "2,5"]) == 2
    assert "trace at 5 (more streams than the 4" in capsys.readouterr().err
    assert not output.exists()


def test_a_core_without_mixed_graphs_is_4_and_a_damaged_one_3(
    core: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    complete_hf(tmp_path / "model")
    path = tmp_path / "separate.core"
    export = ["export", str(tmp_path / "model"), "--output", str(path), "--no-mixed-prefill"]
    assert cli.main([*export, *LIMITS]) == 0
    assert cli.main(["compare", str(path)]) == 4
    assert "mixed" in capsys.readouterr().err
    assert cli.main(["compare", str(tmp_path / "model")]) == 3
    assert not list(Path.cwd().glob("flare-compare-*"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_ends_the_servers_and_keeps_what_there_is(
    number: signal.Signals, core: Path, trace: Path, tmp_path: Path
) -> None:
    command = flare("compare", str(core), "--trace", str(trace), "--concurrency", "2")
    with server_process([*command, "--output", str(tmp_path)]) as process:
        for _ in range(3000):
            if any("pair 1 of 8, mixed" in line for line in process.errors):
                break
            assert process.process.poll() is None, process.stderr
            time.sleep(0.01)
        process.process.send_signal(number)
        assert process.wait() == 130
        assert "interrupted" in process.stderr and "Traceback" not in process.stderr
    found = from_json((tmp_path / "report.json").read_text())
    assert not found.complete and found.verdict.kind == "incomplete"
    assert 1 <= len(found.samples) < 16
    assert not [line for line in command_lines() if str(core) in line]


@pytest.mark.skipif(sys.platform != "linux", reason="prctl(2) is Linux's")
def test_killing_a_comparison_ends_its_server(core: Path, trace: Path, tmp_path: Path) -> None:
    command = flare("compare", str(core), "--trace", str(trace), "--concurrency", "2")
    with server_process([*command, "--output", str(tmp_path)]) as process:
        _until(lambda: bool(servers_of(core)))
        process.process.kill()
        assert process.wait() == -signal.SIGKILL
        _until(lambda: not servers_of(core))


def test_a_server_whose_parent_has_died_does_not_start(core: Path) -> None:
    with server_process(
        [sys.executable, "-m", "app.bench.compare.child", "1", str(core), "--port", "0"]
    ) as orphan:
        assert (orphan.wait(), orphan.stderr) == (0, "")


def servers_of(core: Path) -> list[str]:
    return [line for line in command_lines() if "compare.child" in line and str(core) in line]


def _until(holds: Callable[[], bool]) -> None:
    for _ in range(3000):
        if holds():
            return
        time.sleep(0.01)
    raise AssertionError("not within 30 s")


def command_lines() -> Iterator[str]:
    """Those of all processes."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended meanwhile
            yield path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
