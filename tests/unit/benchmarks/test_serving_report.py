"""The side-by-side report: medians, best rounds, ratios to the best peer, what is missing."""

import json
from pathlib import Path

import pytest

from app.bench.figures import Metric
from benchmarks.serving.__main__ import chosen, scenarios_named
from benchmarks.serving.metrics import METRICS
from benchmarks.serving.report import markdown
from benchmarks.serving.results import Entry, Run, Sample, merged, run_of
from benchmarks.serving.servers import Models, all_servers

DECODE = next(m for m in METRICS if m.name == "single_tok_s")
TTFT = next(m for m in METRICS if m.name == "single_ttft_s")


def entry(name: str, ours: bool = False, installed: bool = True) -> Entry:
    return Entry(name, "Q4_1", "1.0", ours, installed, f"serve {name}")


def samples(server: str, metric: Metric, *values: float) -> list[Sample]:
    return [Sample(server, i, "single", {metric.name: v}) for i, v in enumerate(values)]


def models_in(folder: Path) -> Models:
    return Models(folder / "core", folder / "a.gguf", folder / "b.gguf", folder / "dense")


@pytest.fixture
def run() -> Run:
    taken = [
        *samples("Flare", DECODE, 100, 300, 200),
        *samples("fast", DECODE, 90, 110, 100),
        *samples("slow", DECODE, 10, 500, 20),  # one lucky round is not its median
        *samples("Flare", TTFT, 0.2, 0.1, 0.3),
        *samples("fast", TTFT, 0.4, 0.5, 0.6),
        Sample("slow", 2, "arrival", {}, "ReplyError: HTTP 500"),
    ]
    entries = (entry("Flare", ours=True), entry("fast"), entry("slow"), entry("gone", False, False))
    machine = {"processor": "P", "cores": "2", "instruction sets": "avx2"}
    return Run("2026-12-02T00:00:00+00:00", machine, {"rounds": "3"}, entries, tuple(taken))


def test_median_and_best_follow_the_direction_of_the_metric(run: Run) -> None:
    assert run.median("Flare", DECODE) == 200
    assert run.best("Flare", DECODE) == 300
    assert run.best("Flare", TTFT) == pytest.approx(0.1)


def test_the_best_peer_is_the_best_median_and_never_flare(run: Run) -> None:
    assert run.best_peer(DECODE) == ("fast", 100)
    assert run.best_peer(TTFT) == ("fast", pytest.approx(0.5))


def test_ratios_are_above_one_when_flare_is_better_either_way(run: Run) -> None:
    assert run.ratio("Flare", DECODE) == pytest.approx(2.0)
    assert run.ratio("Flare", TTFT) == pytest.approx(2.5)


def test_nothing_is_made_up_for_what_was_not_measured(run: Run) -> None:
    other = next(m for m in METRICS if m.name == "prefill_tok_s")
    assert run.median("Flare", other) is None
    assert run.best_peer(other) is None
    assert run.ratio("Flare", other) is None


def test_the_report_names_missing_peers_and_failures(run: Run) -> None:
    text = markdown(run)
    row = next(line for line in text.splitlines() if line.startswith("| single: decode"))
    assert [cell.strip() for cell in row.split("|")[2:-1]] == [
        *("200", "100", "20", "not installed"),
        *("fast", "**2.00**"),
    ]
    assert "- slow, arrival, round 3: ReplyError: HTTP 500" in text
    assert "prefill 2048" not in text


def test_a_run_survives_json(run: Run) -> None:
    assert run_of(json.loads(json.dumps(run.as_json()))) == run


def test_what_is_no_run_is_refused_by_name(run: Run) -> None:
    data = run.as_json()
    del data["samples"]
    with pytest.raises(ValueError, match="no samples"):
        run_of(data)


def test_merging_keeps_all_samples_and_refuses_another_machine(run: Run) -> None:
    both = merged([run, run])
    rounds = 1 + max(sample.round for sample in run.samples)
    assert len(both.samples) == 2 * len(run.samples)
    assert both.entries == run.entries
    assert both.settings["rounds"] == str(2 * rounds)
    other = Run(run.date, {**run.machine, "cores": "64"}, {}, (), ())
    with pytest.raises(ValueError, match="different machines"):
        merged([run, other])


def test_servers_are_chosen_by_parts_of_their_names(tmp_path: Path) -> None:
    models = models_in(tmp_path)
    servers = all_servers(models, tmp_path, threads=2)
    assert [s.name for s in chosen("openvino, FLARE", servers)] == [
        *("Flare --mixed-prefill", "Flare --no-mixed-prefill"),
        "Flare --mixed-prefill, n-gram drafts",
        *("OpenVINO GenAI Q4_1", "OpenVINO GenAI Q8_0"),
    ]
    assert chosen("", servers) == list(servers)
    with pytest.raises(ValueError, match="nobody"):
        chosen("nobody", servers)


def test_peers_that_are_not_there_are_not_installed(tmp_path: Path) -> None:
    models = models_in(tmp_path)
    peers = [s for s in all_servers(models, tmp_path, threads=2) if not s.ours]
    assert len(peers) >= 4
    assert not any(s.installed for s in peers)
    assert all("8123" in " ".join(s.at(8123)) for s in peers)


def test_every_scenario_has_its_name_and_unknown_ones_are_refused() -> None:
    assert [s.name for s in scenarios_named("burst32,single")] == ["single", "burst32"]
    with pytest.raises(ValueError, match="burst9"):
        scenarios_named("burst9")
