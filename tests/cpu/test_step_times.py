"""Step times on native kernels: an export measures them, and a forecast comes of them."""

import json
from pathlib import Path

import pytest

from app import cli
from engine.core.reader import open_core
from engine.core.schema import Kind
from engine.core.validate import validate
from engine.export.pipeline import export_core
from engine.export.settings import ExportConfig
from engine.export.step_times import SAMPLES, measured_points
from tests.support.checkpoints import complete_hf


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("timed")
    complete_hf(folder / "tiny", max_position_embeddings=2048)
    limits = {"max_num_seqs": 8, "max_step_tokens": 96}
    config = ExportConfig(
        str(folder / "tiny"), folder / "tiny.core", step_times=True, threads=1, **limits
    )
    return export_core(config)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bare")
    complete_hf(folder / "tiny", max_position_embeddings=2048)
    return export_core(ExportConfig(str(folder / "tiny"), folder / "tiny.core", max_num_seqs=8))


def test_every_graph_is_measured_at_its_ends(timed: Path) -> None:
    with open_core(timed) as core:
        manifest = core.manifest
    validate(manifest)
    catalog = manifest.catalog
    [machine] = catalog.machines
    assert machine.threads == 1 and machine.isa and machine.processor
    assert {time.graph for time in catalog.step_times} == {graph.id for graph in catalog.graphs}
    assert {time.samples for time in catalog.step_times} == {SAMPLES}
    rows = {g.id: {t.tokens for t in catalog.step_times if t.graph == g.id} for g in catalog.graphs}
    assert rows["decode-4"] == {3, 4} and rows["decode-8"] == {5, 8}
    assert rows["prefill-32"] == {1, 32} and rows["prefill-96"] == {33, 96}
    mixed = [t for t in catalog.step_times if t.graph == "mixed-64"]
    assert {t.generated for t in mixed} == {1, 2, 8}
    kinds = {graph.id: graph.kind for graph in catalog.graphs}
    for time in catalog.step_times:
        assert (time.generated == time.tokens) is (kinds[time.graph] is Kind.DECODE)
    assert len(measured_points(catalog.graphs, manifest.limits)) == len(catalog.step_times)


def test_a_forecast_has_the_figures_of_both_families(
    timed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load = [
        "--workload",
        "decode-heavy",
        "--concurrency",
        "2,8",
        "--requests",
        "8",
        "--repeats",
        "1",
    ]
    arguments = ["inspect", str(timed), "--predict", *load]
    assert cli.main([*arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [cell["concurrency"] for cell in report["cells"]] == [2, 8]
    for cell in report["cells"]:
        assert cell["families"].keys() == {"separate", "mixed"}
        for figures in cell["families"].values():
            assert figures["tok_s"] > 0 and 0 < figures["ttft_p50"] <= figures["ttft_max"]
            assert 0 < figures["gap_p50"] <= figures["gap_max"]
    assert cli.main(arguments) == 0
    shown = capsys.readouterr().out
    assert "decode-heavy at 8" in shown and "mixed against separate" in shown
    assert "points measured on" in shown and "ms a token sent" in shown
    assert cli.main(["inspect", str(timed)]) == 0
    assert "step times" in capsys.readouterr().out


def test_a_slower_host_gives_fewer_tokens(timed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for step in ("0", "0.05"):
        arguments = ["inspect", str(timed), "--predict", "--workload", "decode-heavy"]
        arguments += ["--requests", "8", "--repeats", "1"]
        assert cli.main([*arguments, "--step-overhead", step, "--json"]) == 0
        [cell] = json.loads(capsys.readouterr().out)["cells"]
        found.append(cell["families"]["mixed"])
    assert found[1]["gap_p50"] - found[0]["gap_p50"] == pytest.approx(50, rel=0.2)
    assert found[1]["tok_s"] < found[0]["tok_s"] / 2


def test_factors_of_the_step_times_are_used_and_said(
    timed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["inspect", str(timed), "--predict", "--workload", "decode-heavy"]
    arguments += ["--requests", "8", "--repeats", "1"]
    slower = ["--decode-factor", "200", "--prompt-factor", "300"]
    assert cli.main([*arguments, "--decode-factor", "90", "--prompt-factor", "100"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "steps take 90.00 times" in shown and "with prompt rows 100.00 times" in shown
    assert cli.main([*arguments, *slower]) == 2
    assert "--decode-factor must be a factor from 0.01 to 100" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--concurrency", "9"], 2, "at most 8 sequences"),
        (["--token-overhead", "-1"], 2, "--token-overhead"),
        (["--mixed-prefill"], 2, "--mixed-prefill"),
        (["--workload", "chat"], 2, "the context length is 2048 tokens"),
    ],
)
def test_what_cannot_be_forecast_is_refused(
    timed: Path, options: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["inspect", str(timed), "--predict", *options]) == code
    assert message in capsys.readouterr().err


def test_a_core_without_step_times_says_how_to_get_them(
    bare: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["inspect", str(bare), "--predict"]) == 2
    shown = capsys.readouterr().err
    assert "has no step times" in shown and "--tuning balanced" in shown
