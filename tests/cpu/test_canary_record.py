"""Recorded canaries: what an export writes, on which processors it holds, and what is found."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.core.digests import root_digest
from engine.core.errors import CanaryError
from engine.core.reader import Core, open_core
from engine.core.schema import Graph, Kind
from engine.device.base import capacity_of
from engine.device.cpu.device import CpuDevice
from engine.export.pipeline import export_core
from engine.export.settings import ExportConfig
from engine.ranks.devices import open_device
from engine.verification import Check, verify_core
from tests.support.batches import BatchRunner, Part
from tests.support.checkpoints import complete_hf
from tests.support.native import ISAS


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    complete_hf(folder / "tiny")
    config = ExportConfig(
        str(folder / "tiny"), folder / "tiny.core", max_num_seqs=12, max_step_tokens=96
    )
    return export_core(config)


def test_every_graph_has_a_canary(exported: Path) -> None:
    with open_core(exported) as core:
        catalog = core.manifest.catalog
    assert {canary.graph for canary in catalog.canaries} == {graph.id for graph in catalog.graphs}
    assert {canary.seed for canary in catalog.canaries} == {1}
    rows = {canary.graph: canary.rows for canary in catalog.canaries}
    assert (rows["decode-12"], rows["mixed-64"], rows["mixed-96"]) == (12, 14, 14)
    assert len({canary.digest for canary in catalog.canaries}) == len(catalog.canaries)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("threads", [1, 2])
def test_canaries_hold_on_every_path(exported: Path, isa: Any, threads: int) -> None:
    checks = verify_core(exported, open_with=lambda spec: open_device(spec, threads, isa))
    canaries = [check for check in checks if "and as exported" in check.found]
    with open_core(exported) as core:
        assert len(canaries) == len(core.manifest.catalog.graphs)


def changed(core: Path, to: Path, edit: Callable[[dict[str, Any]], Any]) -> Path:
    """A copy of the core whose manifest was changed and signed again."""
    copy = Path(shutil.copytree(core, to))
    values = json.loads((copy / "core.json").read_text())
    edit(values)
    values["root_digest"] = root_digest(values)
    (copy / "core.json").write_text(json.dumps(values))
    return copy


def test_other_bits_than_recorded_are_found(exported: Path, tmp_path: Path) -> None:
    """Each row has the bits that it has alone, but they are not those of the export."""

    def edit(values: dict[str, Any]) -> None:
        canary = next(c for c in values["canaries"] if c["graph"] == "decode-4")
        canary.update(
            digest="0" * 64, argmax=[(canary["argmax"][0] + 1) % 9, *canary["argmax"][1:]]
        )

    seen: list[Check] = []
    with pytest.raises(CanaryError, match="canaries of decode-4: expected the bits") as caught:
        verify_core(changed(exported, tmp_path / "core", edit), seen.append)
    assert caught.value.exit_code == 3
    [failed] = [check for check in seen if not check.passed]
    assert failed.name == "decode-4"
    assert "expected digest 0000000000000000, found " in failed.found
    assert "1 of 4 likeliest tokens differ" in failed.found


def test_weights_that_changed_with_their_digests_are_found(exported: Path, tmp_path: Path) -> None:
    """What digests cannot see, since all are made anew: one bit of one weight."""
    with open_core(exported) as core:
        tensor = next(t for t in core.manifest.catalog.storage if t.name == "layers.1.down")

    def edit(values: dict[str, Any]) -> None:
        entry = next(t for t in values["storage"] if t["name"] == tensor.name)
        entry["digest"] = hashlib.sha256(
            data[tensor.offset : tensor.offset + tensor.size]
        ).hexdigest()
        section = next(s for s in values["sections"] if s["path"] == tensor.file)
        section["digest"] = hashlib.sha256(data).hexdigest()

    data = bytearray((exported / tensor.file).read_bytes())
    data[tensor.offset + 3] ^= 0x20
    copy = changed(exported, tmp_path / "core", edit)
    (copy / tensor.file).write_bytes(data)
    with pytest.raises(CanaryError, match="canaries of decode-1, "):
        verify_core(copy)


class Described:
    """The rule of docs/core-format.md, written from that page alone."""

    def __init__(self, core: Core) -> None:
        manifest = core.manifest
        self.vocab = manifest.model.vocab_size
        self.size = min(manifest.model.kv.block_size, manifest.limits.max_model_len)
        graphs = manifest.catalog.graphs
        self.decoding = max(self.most(g) for g in graphs if g.kind in (Kind.DECODE, Kind.MIXED))

    def most(self, graph: Graph) -> int:
        return min(graph.domain.tokens, graph.domain.seqs, graph.domain.logits)

    def prompt(self, s: int, rows: int, seed: int) -> Part:
        tokens = tuple((7919 * (s + 1) + 104729 * j + seed) % self.vocab for j in range(rows))
        return Part(tokens, 0, (s + 1,), wanted=1)

    def before(self, s: int, seed: int) -> Part:
        return self.prompt(s, 1 + s % max(1, min(16, self.size - 1)), seed)

    def batch(self, graph: Graph, seed: int) -> list[Part]:
        domain, most = graph.domain, self.most(graph)
        decode = {Kind.DECODE: most, Kind.MIXED: most // 2, Kind.PREFILL: 0}[graph.kind]
        parts = []
        for s in range(decode):
            token = (31 * s + 5 + seed) % self.vocab
            parts.append(Part((token,), len(self.before(s, seed).tokens), (s + 1,), True, wanted=1))
        longest = max(1, min(self.size, domain.tokens // 2))
        prompts = min(min(domain.seqs, domain.logits) - decode, 2 * -(-domain.tokens // longest))
        left = domain.tokens - decode
        for k in range(prompts):
            if left:
                part = self.prompt(self.decoding + k, min(left, max(1, longest - k)), seed)
                parts.append(part)
                left -= len(part.tokens)
        return parts


def test_the_document_is_enough_to_make_canaries(exported: Path) -> None:
    with open_core(exported) as core:
        manifest = core.manifest
        weights = {t.name: core.tensor(t.name) for t in manifest.catalog.storage}
        described = Described(core)
    graphs = manifest.catalog.graphs
    device = CpuDevice(
        manifest.model, capacity_of(graphs), weights,
        workspace_bytes=max(g.workspace_bytes for g in graphs), num_blocks=64, max_blocks=1,
        sampler_slots=1, threads=1,
    )  # fmt: skip
    runner = BatchRunner(device, manifest.catalog)
    for canary in manifest.catalog.canaries:
        graph = next(g for g in graphs if g.id == canary.graph)
        for s in range(described.decoding):
            runner.run("prefill-96", [described.before(s, canary.seed)])
        logits = runner.run(graph.id, described.batch(graph, canary.seed))[:, : described.vocab]
        assert hashlib.sha256(np.ascontiguousarray(logits).astype("<f4").tobytes()).hexdigest() == (
            canary.digest
        )
        assert tuple(logits.argmax(axis=1)) == canary.argmax
