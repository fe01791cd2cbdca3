"""Captured graphs: capacities, one body for all, kernels, tuning keys, what a program reads."""

from pathlib import Path

import pytest

from engine.core.schema import Family, Kind, Limits
from engine.export.graphs import plan_graphs
from engine.export.tuning.records import row_class
from engine.ir.program import Domain, Space
from engine.ir.verify import verify_programs
from tests.support.captures import capture


@pytest.mark.parametrize(
    ("limits", "ids"),
    [
        (
            Limits(24, 128, 200),
            "decode-1 decode-2 decode-4 decode-8 decode-16 decode-24 "
            "prefill-32 prefill-128 prefill-200 mixed-64 mixed-200",
        ),
        (
            Limits(64, 8192, 512),
            "decode-1 decode-2 decode-4 decode-8 decode-16 decode-32 decode-64 "
            "prefill-32 prefill-128 prefill-512 mixed-64 mixed-256 mixed-512",
        ),
        (Limits(1, 16, 1), "decode-1 prefill-1 mixed-1"),
        (Limits(3, 16, 32), "decode-1 decode-2 decode-3 prefill-32 mixed-32"),
    ],
)
def test_capacities(limits: Limits, ids: str) -> None:
    graphs = plan_graphs(limits, True)
    assert [graph.id for graph in graphs] == ids.split()
    for graph in graphs:
        domain = graph.domain
        assert domain.seqs <= domain.tokens and domain.logits <= domain.tokens
        assert domain.logits >= min(domain.tokens, limits.max_num_seqs, domain.seqs)
    separate = [graph for graph in graphs if graph.family is Family.SEPARATE]
    assert plan_graphs(limits, False) == tuple(separate)


def test_mixed_graphs_take_two_segments_per_sequence() -> None:
    mixed = plan_graphs(Limits(64, 8192, 512), True)[-1]
    assert (mixed.kind, mixed.domain) == (Kind.MIXED, Domain(512, 128, 64))


def test_one_body_serves_every_graph(tmp_path: Path) -> None:
    captured = capture(tmp_path)
    programs = list(captured.programs.values())
    assert len({id(program.launches) for program in programs}) == 1
    ops = [launch.op for launch in programs[0].launches]
    layer = ["rms_norm", "linear", "rope_store_kv", "paged_attention", "linear",
             "rms_norm", "linear", "linear"]  # fmt: skip
    assert ops == ["embed", *layer, *layer, "gather_rows", "rms_norm", "linear"]
    verify_programs(programs)


def test_a_residual_stream_has_one_place(tmp_path: Path) -> None:
    program = capture(tmp_path).programs["prefill-128"]
    offsets = {
        program.buffers[name].offset
        for name in ("x", "layers.0.attn_out", "layers.0.ffn_out", "layers.1.ffn_out")
    }
    assert len(offsets) == 1


def test_classes_follow_the_role_of_the_weight(tmp_path: Path) -> None:
    launches = capture(tmp_path).programs["decode-1"].launches
    found = {
        launch.inputs[1]: (
            launch.kernel,
            launch.attrs["prompt_class"],
            launch.attrs["generated_class"],
        )
        for launch in launches
        if launch.op == "linear"
    }
    assert found["layers.0.qkv"] == ("cpu.linear.q4p16.int12_g32.bf16_t32", "bf16_t32", "int12_g32")
    assert found["embed"] == ("cpu.linear.q8p16.int12_g32", "int12_g32", "int12_g32")


def test_a_graph_names_all_that_its_program_uses(tmp_path: Path) -> None:
    captured = capture(tmp_path)
    kernels = {kernel.id for kernel in captured.kernels}
    for graph in captured.graphs:
        program = captured.programs[graph.program]
        weights = {b.name for b in program.buffers.values() if b.space is Space.WEIGHT}
        assert set(graph.layouts) == weights
        assert set(graph.kernels) == {launch.kernel for launch in program.launches} == kernels
        assert graph.workspace_bytes == program.arena_bytes
        assert program.buffers["logits"].shape == ("logits", 96)


def test_tuning_records_form_a_closed_set(tmp_path: Path) -> None:
    captured = capture(tmp_path)
    records = {record.key: record for record in captured.tuning}
    assert len(records) == len(captured.tuning)
    graphs = {graph.id: graph for graph in captured.graphs}
    for graph in captured.graphs:
        assert set(graph.tuning) <= records.keys()
    for record in captured.tuning:
        assert record.profile == "fast" and record.winner == record.candidates[0].kernel
        assert set(record.depends_on) <= records.keys()
        assert record.introduced_by in graphs
    one = records["linear/q4p16.int12_g32.bf16_t32/128x64/rows-1"]
    assert (one.depends_on, one.introduced_by) == ((), "decode-1")
    many = records["linear/q4p16.int12_g32.bf16_t32/128x64/rows-128"]
    assert (many.depends_on, many.introduced_by) == ((one.key,), "decode-24")
    assert (
        records["linear/q4p16.int12_g32.bf16_t32/128x64/rows-many"].introduced_by == "prefill-200"
    )
    assert "linear/q8p16.int12_g32/96x64/rows-16" in records
    assert "paged_attention/4x2x16/rows-16" in records
    assert "linear/q4p16.int12_g32.bf16_t32/128x64/rows-16" not in graphs["prefill-32"].tuning


def test_row_classes() -> None:
    found = [row_class(rows) for rows in (1, 2, 16, 17, 128, 129, 4096)]
    assert found == ["1", "16", "16", "128", "128", "many", "many"]


def test_without_mixed_prefill_nothing_is_mixed(tmp_path: Path) -> None:
    captured = capture(tmp_path, mixed=False)
    assert {graph.kind for graph in captured.graphs} == {Kind.DECODE, Kind.PREFILL}
    assert captured.programs.keys() == {graph.id for graph in captured.graphs}
