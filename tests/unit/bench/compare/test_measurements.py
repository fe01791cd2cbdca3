"""Stalls, texts, energy counters, a server's words: each from made-up observations."""

from pathlib import Path

import pytest

from app.bench.compare.legs import MIXED, SEPARATE, switchable
from app.bench.compare.power import open_meter
from app.bench.compare.server import command, ended, environment, load_phases
from app.bench.compare.stalls import tagged
from app.bench.drive import Answer
from engine.errors import CoreError, FlareError, SelectionError


def answer(index: int, sent: float, first: float, *gaps: float) -> Answer:
    return Answer(index, sent, first, gaps, 10, len(gaps) + 1, "", sent)


def test_gaps_that_overlap_anothers_prefill_are_stalls() -> None:
    writing = answer(0, 0.0, 1.0, 0.5, 0.5, 0.5, 0.5)  # gaps end at 1.5, 2.0, 2.5, 3.0
    arriving = answer(1, 1.6, 2.2, 0.1)
    found = tagged([writing, arriving])
    assert found.stalls == (0.5, 0.5)  # those that end at 2.0 and at 2.5
    assert sorted(found.steady) == pytest.approx([0.1, 0.5, 0.5])


def test_an_own_prefill_is_no_stall() -> None:
    assert tagged([answer(0, 0.0, 1.0, 0.5, 0.5)]).stalls == ()


def test_prefills_that_overlap_each_other_are_one_span() -> None:
    answers = [answer(0, 0.0, 0.5, *[0.5] * 9), answer(1, 1.1, 2.6), answer(2, 1.2, 1.3)]
    assert len(tagged(answers).stalls) == 4  # the gaps that end at 1.5, 2.0, 2.5 and 3.0


def test_a_request_counts_from_when_it_was_sent_not_from_when_it_was_due() -> None:
    late = Answer(1, 0.1, 2.2, (), 10, 1, "", 2.1)
    found = tagged([answer(0, 0.0, 0.05, 1.0, 1.0, 1.0), late])
    assert len(found.stalls) == 1


def zone(root: Path, name: str, label: str, value: int, most: int = 1000) -> Path:
    folder = root / name
    folder.mkdir()
    for file, text in (("name", label), ("energy_uj", value), ("max_energy_range_uj", most)):
        (folder / file).write_text(f"{text}\n")
    return folder / "energy_uj"


def test_energy_is_summed_over_packages_and_begins_again(tmp_path: Path) -> None:
    first = zone(tmp_path, "intel-rapl:0", "package-0", 900)
    second = zone(tmp_path, "intel-rapl:1", "package-1", 5)
    zone(tmp_path, "intel-rapl:0:0", "core", 7)
    meter = open_meter(tmp_path)
    before = meter.read()
    first.write_text("99\n")  # 900 to 1000, then to 99: 200 in all
    second.write_text("25\n")
    assert meter.absent is None
    assert meter.joules(before) == pytest.approx(220e-6)


def test_no_meter_says_why(tmp_path: Path) -> None:
    assert "this system has no" in str(open_meter(tmp_path / "none").absent)
    meter = open_meter(tmp_path)
    assert "no processor package" in str(meter.absent)
    assert meter.read() is None and meter.joules(None) is None


def test_a_server_that_ended_passes_on_its_code_and_words() -> None:
    log = "noise\nflare: error: the core is damaged\nhint: export it again\n"
    error = ended(MIXED, 3, log)
    assert isinstance(error, CoreError) and error.hint == "export it again"
    assert "mixed server ended with code 3: the core is damaged" in str(error)
    assert isinstance(ended(MIXED, 4, log), SelectionError)
    bare = ended(MIXED, -9, "")
    assert type(bare) is FlareError and "it said nothing" in str(bare)


def test_legs_differ_in_their_flag_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLARE_MIXED_PREFILL", "true")
    monkeypatch.setenv("FLARE_ADMIN_KEY", "k")
    monkeypatch.setenv("FLARE_THREADS", "2")
    core = Path("a.core")
    assert set(command(core, MIXED)) ^ set(command(core, SEPARATE)) == {
        *("--mixed-prefill", "--no-mixed-prefill")
    }
    own = environment(SEPARATE)
    assert own == environment(MIXED)
    assert (own["FLARE_MIXED_PREFILL"], own["FLARE_ADMIN_KEY"], own["FLARE_THREADS"]) == (
        *("", "", "2"),
    )
    assert environment(switchable("secret"))["FLARE_ADMIN_KEY"] == "secret"


def test_load_phases_are_read() -> None:
    text = 'flare_load_phase_seconds{phase="open"} 0.5\nflare_load_phase_seconds{phase="total"} 1\n'
    assert load_phases(f"# TYPE flare_load_phase_seconds gauge\n{text}") == {
        "open": 0.5,
        "total": 1,
    }
