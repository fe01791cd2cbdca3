"""The report: what it holds, that it reads back, and a page that nothing can break out of."""

import json
import re
from html.parser import HTMLParser

import msgspec
import pytest

from app.bench.compare.analysis import histogram
from app.bench.compare.forecasts import Fit
from app.bench.compare.page import page
from app.bench.compare.report import FORMAT_VERSION, Report, from_json, notes, to_json
from app.bench.compare.table import report_text
from engine.simulation import Overheads
from tests.support.comparisons import CONFIG, grid_report, report, taken

NASTY = '<script>alert("x")</script>&\'"'
VOID = {"meta"}


class Reader(HTMLParser):
    """Checks that elements close as they opened, and keeps what a page shows."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    return reader


@pytest.fixture(params=["loads", "grid", "partial"])
def any_report(request: pytest.FixtureRequest) -> Report:
    if request.param == "grid":
        return grid_report({(64, 2): 1.1, (256, 4): 0.9})
    return report({"tok_s": 1.1}, error="interrupted" if request.param == "partial" else None)


def test_it_reads_back_and_says_its_format(any_report: Report) -> None:
    text = to_json(any_report)
    data = json.loads(text)
    assert (data["object"], data["format_version"]) == ("compare", FORMAT_VERSION)
    assert from_json(text) == any_report
    assert data["complete"] == (data["verdict"]["kind"] != "incomplete")
    with pytest.raises(msgspec.ValidationError):
        from_json(text.replace('"object": "compare"', '"object": "bench"'))


def test_the_page_is_whole_and_refers_to_nothing(any_report: Report) -> None:
    text = page(any_report)
    found = read(text)
    assert any_report.verdict.sentence in found.text
    assert "script" not in found.seen and "link" not in found.seen and "img" not in found.seen
    assert not re.search(r"https?://|@import|url\((?!#)", text)
    names = [value for name, value in found.attributes if name == "id"]
    assert len(names) == len(set(names))
    assert text.count("<svg") == text.count('role="img"') + text.count('aria-hidden="true"')
    assert "prefers-color-scheme: dark" in text


def test_words_from_outside_are_text(any_report: Report) -> None:
    nasty = msgspec.structs.replace(
        any_report,
        model={"id": NASTY},
        core={"path": NASTY},
        machine={NASTY: NASTY},
        notes=(NASTY,),
        power_absent=NASTY,
    )
    found = read(page(nasty))
    assert "script" not in found.seen
    assert found.text.count("<script>") >= 6


def test_colours_are_not_alone() -> None:
    text = page(report({"tok_s": 1.2, "ttft_mean": 1.2}))
    assert "mixed is better" in text and "separate is better" in text and "no difference" in text
    assert 'd="M' in text and "<circle" in text  # squares and diamonds, circles
    assert "url(#hatch-" in text and 'id="hatch-base"' in text


def test_a_heat_map_marks_what_is_not_shown() -> None:
    made = grid_report({(64, 2): 1.1, (256, 4): 0.9})
    found = page(made)
    squares = re.findall(r'class="heat (\w+)"', found)[:4]
    assert sorted(squares) == ["base", "open", "open", "other"]
    assert found.split("<details")[0].count(">not shown<") == 2
    shown = report_text(made)
    assert "+10.1 % (mixed)" in shown.replace("+10.0 %", "+10.1 %") and shown.count("(open)") == 2


def test_the_table_ends_with_the_verdict() -> None:
    made = report({"gap_p99": 0.5})
    lines = report_text(made).strip().splitlines()
    assert lines[-1] == made.verdict.sentence
    whole = "\n".join(lines)
    assert "inter-token p99, ms*" in whole and "decode launches" in whole
    assert "held for graphs that are not selected" in whole
    assert "this machine has no meter" in whole
    assert "all 20 answers are the same" in whole


def test_loading_is_compared_start_by_start() -> None:
    made = report()
    assert made.loading.legs["separate"].starts == 10
    memory = next(d for d in made.loading.differences if d.metric == "resident_mib")
    assert memory.estimate == pytest.approx(20 / 280)
    assert memory.better == "separate"
    assert made.loading.legs["mixed"].held_bytes == 0


def test_a_histogram_holds_every_gap() -> None:
    runs = [taken("c", leg, 0, {}) for leg in ("separate", "mixed")]
    found = histogram(runs, ("separate", "mixed"))
    assert found is not None
    assert sum(found.steady["mixed"]) == 2 and sum(found.stalls["separate"]) == 1
    assert found.edges[0] == pytest.approx(0.01) and found.edges[-1] == pytest.approx(0.05)


def test_servers_that_differ_in_their_limits_are_noted() -> None:
    other = {**CONFIG, "scheduler": {**CONFIG["scheduler"], "kv_blocks": 90}}
    (line,) = notes({"separate": CONFIG, "mixed": other})
    assert "kv_blocks: 100 (separate), 90 (mixed)" in line and "FLARE_KV_CACHE_MEMORY" in line
    assert notes({"separate": CONFIG, "mixed": CONFIG}) == ()


def test_a_forecast_stands_beside_the_measurement() -> None:
    plain = report()
    assert "orecast" not in page(plain) + report_text(plain)
    told = {"separate": {"tok_s": 110.0}, "mixed": {"tok_s": 95.0, "unknown": 1.0}}
    fit = Fit({leg: Overheads(0.003, 0.0001, 0.0, 1.25, 1.5) for leg in told}, probes=16)
    cell = msgspec.structs.replace(plain.cells[0], forecast=told, fit=fit)
    made = msgspec.structs.replace(plain, cells=(cell,))
    assert from_json(to_json(made)) == made
    found = read(page(made)).text
    for text in (found, report_text(made)):
        assert "mixed: steps take 1.25 times" in text and "with prompt rows 1.50 times" in text
        assert "fitted to 16 short runs" in text
    assert "Forecast and measurement" in found and "110.0" in found and "+10.0 %" in found
    shown = report_text(made)
    assert "separate, forecast" in shown and "95.0" in shown and "unknown" not in shown
