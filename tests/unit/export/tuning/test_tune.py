"""Decisions on a made-up machine: winners, noise, vetoes, dependencies, buckets, resuming."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.core.schema import Kind, Tuning, TuningRecord
from engine.export.catalog import Capture
from engine.export.tuning.journal import Journal
from engine.export.tuning.measure import with_journal
from engine.export.tuning.questions import Ask, Measurement, Question
from engine.export.tuning.task import Task, Told
from engine.export.tuning.tune import tune
from engine.ir.program import Space
from engine.ir.verify import verify_programs
from engine.kernels.parameters import split_id
from tests.support.captures import LIMITS, capture

Seconds = Callable[[str, str], float]
"""(key of a question, option) -> what it takes."""


class Machine:
    """Answers with the seconds that a rule gives, each sample a little off. ``asked``: keys."""

    def __init__(self, seconds: Seconds, refused: dict[str, str] | None = None) -> None:
        self.seconds = seconds
        self.refused = refused or {}
        self.asked: list[str] = []

    def __call__(self, question: Question) -> Measurement:
        self.asked.append(question.key)
        refused = {o: self.refused[o] for o in question.options if o in self.refused}
        samples = {}
        for option in question.options:
            if option not in refused:
                draw = random.Random(f"{question.key} {option}")
                base = self.seconds(question.key, option)
                samples[option] = [base * (1 + abs(draw.gauss(0, 0.02))) for _ in range(20)]
        checked = "reference+rows" if question.check else None
        return Measurement(question.key, samples, checked, refused)


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Capture:
    return capture(tmp_path_factory.mktemp("tiny"))


def tuned(
    captured: Capture, machine: Ask, profile: Tuning = "balanced", budget: int = 0
) -> Capture:
    task = Task(captured, profile, LIMITS.max_model_len, budget)
    return tune(task, machine, Told(lambda title, total: None, lambda: None))


def faster(part: str, parameter: str, seconds: float = 0.5) -> Seconds:
    """Options with a parameter win where the key holds ``part``; a step sums nothing up."""

    def rule(key: str, option: str) -> float:
        return seconds if part in key and parameter in option else 1.0

    return rule


def kernels(found: Capture, graph_id: str) -> set[str]:
    return {launch.kernel for launch in found.programs[graph_id].launches}


def assert_whole(found: Capture) -> None:
    """What a core's validation asks of a capture."""
    verify_programs(found.programs.values())
    records = {record.key: record for record in found.tuning}
    named = {kernel.id for kernel in found.kernels}
    graphs = {graph.id for graph in found.graphs}
    assert len(records) == len(found.tuning) and found.programs.keys() == graphs
    for graph in found.graphs:
        assert set(graph.kernels) == kernels(found, graph.id) <= named
        assert set(graph.tuning) <= records.keys() and graph.reason.startswith("measured: ")
        own = [key for key in graph.tuning if not key.startswith("layout/")]
        assert own and all(records[key].winner in graph.kernels for key in own)
        buffers = found.programs[graph.id].buffers.values()
        assert set(graph.layouts) == {b.name for b in buffers if b.space is Space.WEIGHT}
    for record in found.tuning:
        assert {candidate.kernel for candidate in record.candidates} <= named
        assert record.winner in {candidate.kernel for candidate in record.candidates}
        assert set(record.depends_on) <= records.keys() and record.reason
        assert record.introduced_by in graphs


def test_noise_changes_nothing(captured: Capture) -> None:
    found = tuned(captured, Machine(lambda key, option: 1.0))
    assert_whole(found)
    assert not any("@" in kernel for graph in found.graphs for kernel in graph.kernels)
    assert len({id(program.launches) for program in found.programs.values()}) == 1
    timed = [r for r in found.tuning if len(r.candidates) > 1 and not r.key.startswith("layout/")]
    assert timed and all(record.profile == "balanced" for record in found.tuning)
    for record in timed:
        for candidate in record.candidates:
            assert len(candidate.samples) >= 20
            assert candidate.low is not None and candidate.high is not None
            assert 0 < candidate.low <= candidate.high


def test_a_gain_is_taken_where_it_was_measured(captured: Capture) -> None:
    machine = Machine(faster("linear/q4p16.int12_g32.bf16_t32/128x64/generated-8", "pieces=4"))
    found = tuned(captured, machine)
    assert_whole(found)
    with_gain = {g.id for g in found.graphs if any("@" in kernel for kernel in g.kernels)}
    assert with_gain == {"decode-8"}  # of decode-2, -4 and -8, which share it
    [record] = [r for r in found.tuning if r.winner.endswith("@pieces=4")]
    assert "128x64" in record.key and record.key.endswith("generated-8")
    assert "faster than the heuristic" in record.reason
    assert f"{record.key}/again" in machine.asked
    step = [key for key in machine.asked if key.startswith("step/")]
    assert "step/decode-8" in step and len(step) == len(set(step))


def test_a_gain_that_does_not_come_back_is_noise(captured: Capture) -> None:
    lucky = faster("/generated-8", "pieces=4")
    machine = Machine(lambda key, option: 1.0 if key.endswith("/again") else lucky(key, option))
    found = tuned(captured, machine)
    assert any(key.endswith("/again") for key in machine.asked)
    assert not any("@" in kernel for graph in found.graphs for kernel in graph.kernels)
    assert any("won once, and not again" in record.reason for record in found.tuning)


def test_a_gain_that_slows_the_whole_step_is_given_up(captured: Capture) -> None:
    def rule(key: str, option: str) -> float:
        if key == "step/decode-8":
            return 1.5 if option == "tuned" else 1.0
        return faster("/generated-", "pieces=4")(key, option)

    found = tuned(captured, Machine(rule))
    assert_whole(found)
    assert not any("@" in kernel for kernel in kernels(found, "decode-8"))
    assert any("@pieces=4" in kernel for kernel in kernels(found, "decode-1"))
    graph = next(graph for graph in found.graphs if graph.id == "decode-8")
    assert "not kept" in graph.reason
    held = [r for r in found.tuning if "whole step of decode-8 was slower" in r.reason]
    assert held and all(r.winner == r.candidates[0].kernel for r in held)


def test_capacities_stay_where_kernels_or_limits_need_them(captured: Capture) -> None:
    found = tuned(captured, Machine(faster("/generated-1", "pieces=4")))
    kept = [graph.id for graph in found.graphs]
    # decode-1 has kernels of its own; the other small ones run the same as the largest.
    assert kept == ["decode-1", "decode-24", "prefill-200", "mixed-64", "mixed-200"]
    reasons = {graph.id: graph.reason for graph in found.graphs}
    assert reasons["decode-1"].startswith("measured: other kernels than decode-24")
    assert reasons["decode-24"].startswith("measured: the limit")
    assert "lower step limit" in reasons["mixed-64"]
    assert "ms" in reasons["prefill-200"]
    # decode-24 rests on what was measured of the capacities that it took over.
    keys = next(graph.tuning for graph in found.graphs if graph.id == "decode-24")
    measured = {key.rpartition("/")[2] for key in keys if not key.startswith("layout/")}
    assert measured == {"generated-8", "generated-32"}


def test_audit_asks_for_every_capacity_and_combination(captured: Capture) -> None:
    machine = Machine(lambda key, option: 1.0)
    found = tuned(captured, machine, "audit")
    assert_whole(found)
    for graph in captured.graphs:
        role = {Kind.DECODE: "generated", Kind.PREFILL: "prompt", Kind.MIXED: "mixed"}[graph.kind]
        assert any(key.endswith(f"/{role}-{graph.domain.tokens}") for key in machine.asked)
    linear = next(r for r in found.tuning if "128x64/generated-" in r.key)
    cuts = [split_id(candidate.kernel)[1] for candidate in linear.candidates]
    assert cuts[0] == {} and len(cuts) == 21 and {"pieces": 256, "run": 4} in cuts
    assert all(candidate.checked == "reference+rows" for candidate in linear.candidates)


def test_what_fails_its_check_never_wins(captured: Capture) -> None:
    bad = "cpu.linear.q4p16.int12_g32.bf16_t32@pieces=4"
    machine = Machine(faster("/generated-", "pieces=4"), {bad: "other bits"})
    found = tuned(captured, machine, "audit")
    assert_whole(found)
    assert not any(graph.kernels.count(bad) for graph in found.graphs)
    refused = [c for r in found.tuning for c in r.candidates if c.kernel == bad]
    assert refused and all(c.refused == "other bits" and c.checked is None for c in refused)
    assert any("@pieces=4,run=" in kernel for graph in found.graphs for kernel in graph.kernels)


def test_a_resumed_export_asks_only_for_the_rest(captured: Capture, tmp_path: Path) -> None:
    rule = faster("/generated-", "pieces=4")
    whole = Machine(rule)
    with Journal(tmp_path / "whole", {"created": 1}, resume=False) as journal:
        expected = tuned(captured, with_journal(journal, whole))
    lines = (tmp_path / "whole").read_bytes().splitlines(keepends=True)
    assert len(lines) == 1 + len(whole.asked)
    for count in range(1, len(lines), 3):
        path = tmp_path / "part"
        path.write_bytes(b"".join(lines[:count]) + lines[count][:9])
        # What is measured after the interruption says something else: it must not be asked again.
        rest = Machine(rule)
        with Journal(path, {"created": 2}, resume=True) as journal:
            found = tuned(captured, with_journal(journal, rest))
        assert rest.asked == whole.asked[count - 1 :]
        assert found == expected
    silent = Machine(lambda key, option: 0.0)
    with Journal(tmp_path / "whole", {"created": 2}, resume=True) as journal:
        assert tuned(captured, with_journal(journal, silent)) == expected
    assert silent.asked == []


QKV, DOWN = "q4p16.int12_g32.bf16_t32/128x64", "q4p16.int12_g32.bf16_t32/64x96"
SECOND = "linear.q4p16.int12_g32.bf16_t32.bf16p16"
BUDGET = 1 << 20
"""Enough for every weight of the tiny model."""


def readers(found: Capture, shape: str) -> set[str]:
    """Graphs in which linears of these sizes read two layouts."""
    n, k = (int(size) for size in shape.rpartition("/")[2].split("x"))
    return {
        name
        for name, program in found.programs.items()
        for launch in program.launches
        if launch.attrs.get("prompt_layout") and (launch.attrs["n"], launch.attrs["k"]) == (n, k)
    }


def two_layouts(seconds: dict[str, float]) -> Seconds:
    """One layout takes 1 s; two take what is said of a key that contains a part."""

    def rule(key: str, option: str) -> float:
        if "bf16p16" not in option or not key.startswith("layout/"):
            return 1.0
        return next((value for part, value in seconds.items() if part in key), 1.0)

    return rule


def joint(found: Capture, shape: str) -> TuningRecord:
    return next(r for r in found.tuning if r.key == f"layout/linear/{shape}")


def test_a_second_layout_is_shared_by_all_that_read_prompts(captured: Capture) -> None:
    found = tuned(captured, Machine(two_layouts({QKV: 0.5})), budget=BUDGET)
    assert_whole(found)
    assert readers(found, QKV) == {g.id for g in found.graphs if g.kind is not Kind.DECODE}
    assert not readers(found, DOWN)
    prefill = next(graph for graph in found.graphs if graph.kind is Kind.PREFILL)
    decode = next(graph for graph in found.graphs if graph.kind is Kind.DECODE)
    assert "layers.0.qkv.prompt" in prefill.layouts and "layers.0.qkv" in prefill.layouts
    assert not any(name.endswith(".prompt") for name in decode.layouts)
    record = joint(found, QKV)
    assert record.winner == f"cpu.{SECOND}" and " ms a step for 0.0 MiB" in record.reason
    assert {key.rpartition("/")[2] for key in record.depends_on} == {
        "generated-1", "prompt-32", "prompt-128", "prompt-many", "mixed-128", "mixed-many",
    }  # fmt: skip
    assert record.key in prefill.tuning and record.key in decode.tuning
    assert joint(found, DOWN).winner == "cpu.linear.q4p16.int12_g32.bf16_t32"
    assert "too little" in joint(found, DOWN).reason
    [kernel] = [k for k in found.kernels if k.id == f"cpu.{SECOND}"]
    assert kernel.parameters == {"layout": "q4p16", "prompt_layout": "bf16p16"}


def test_a_class_that_loses_forbids_a_second_layout(captured: Capture) -> None:
    rule = two_layouts({f"{QKV}/mixed-many": 1.2, QKV: 0.3})
    found = tuned(captured, Machine(rule), budget=BUDGET)
    assert not readers(found, QKV)
    assert "slower for mixed-many" in joint(found, QKV).reason
    refused = joint(found, QKV).candidates[1].refused
    assert refused == joint(found, QKV).reason


def test_a_saving_must_be_worth_its_bytes(captured: Capture) -> None:
    """20 KiB of second layout must save 0.2 us a step."""
    few = 1e-6

    def rule(key: str, option: str) -> float:
        return two_layouts({QKV: 0.95, DOWN: 0.5})(key, option) * few

    found = tuned(captured, Machine(rule), budget=BUDGET)
    assert readers(found, DOWN) and not readers(found, QKV)


def test_the_budget_goes_to_what_saves_most_per_byte(captured: Capture) -> None:
    """Two layers: qkv takes 2 x 16 KiB, down 2 x 12 KiB."""
    rule = two_layouts({QKV: 0.5, DOWN: 0.4})
    found = tuned(captured, Machine(rule), budget=40 << 10)
    assert readers(found, DOWN) and not readers(found, QKV)
    assert "what is left of the layout budget" in joint(found, QKV).reason
    found = tuned(captured, Machine(rule), budget=56 << 10)
    assert readers(found, DOWN) and readers(found, QKV)


def test_without_a_budget_nothing_is_asked(captured: Capture) -> None:
    machine = Machine(two_layouts({QKV: 0.1}))
    found = tuned(captured, machine)
    assert not any(key.startswith("layout/") for key in machine.asked)
    assert not readers(found, QKV)
    record = joint(found, QKV)
    assert record.reason.startswith("not measured: ") and not record.candidates[0].samples
