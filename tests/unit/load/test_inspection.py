"""What ``flare inspect`` and ``flare verify`` say of a core."""

import json
from pathlib import Path

import numpy as np
import pytest

from engine.core.errors import DigestMismatchError, StorageInvalidError
from engine.core.reader import open_core
from engine.errors import CoreError, SelectionError, SettingsError
from engine.inspection import inspect_core, program_text
from engine.verification import Check, verify_core
from tests.support.cores import CoreSpec, Weight, weights, write_core


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_core(tmp_path_factory.mktemp("cores") / "a.core", CoreSpec(verify=(2,)))


@pytest.mark.parametrize(("requested", "mixed"), [(None, True), (True, True), (False, False)])
def test_inspection_tells_what_is_kept_and_why_not(
    core: Path, requested: bool | None, mixed: bool
) -> None:
    found = inspect_core(core, requested)
    json.dumps(found, allow_nan=False)
    assert found["selection"]["requested"] is requested
    assert found["selection"]["family"] == ("mixed" if mixed else "separate")
    graphs = {graph["id"]: graph for graph in found["graphs"]}
    assert graphs["mixed-8"]["retained"] is mixed
    assert graphs["mixed-8"]["reason"] == (None if mixed else "not selected")
    assert graphs["decode-1"]["retained"]
    assert not graphs["verify-2"]["retained"]
    assert graphs["verify-2"]["reason"] == "captured for speculative ngram, this run has off"
    retained = sum(graph["retained"] for graph in found["graphs"])
    assert retained == sum(found["selection"]["retained"].values())
    assert found["identity"]["device"] == "cpu"
    assert found["digest"]
    assert (
        sum(entry["bytes"] for entry in found["storage"])
        == (found["selection"]["storage_bytes"]["captured"])
    )


def test_inspection_refuses_what_a_run_would(tmp_path: Path) -> None:
    path = write_core(tmp_path / "a.core", CoreSpec(mixed=()))
    with pytest.raises(SelectionError):
        inspect_core(path, True)


@pytest.mark.parametrize("layout", ["bf16p16", "q8p16", "q4p16"])
def test_verification_passes_and_reports(tmp_path: Path, layout: str) -> None:
    path = write_core(tmp_path / "a.core", CoreSpec(layout=layout))
    reported: list[Check] = []
    checks = verify_core(path, reported.append)
    assert checks == reported
    names = ["digests", "catalog", "programs", "numerics", "selections", "values"]
    assert [check.name for check in checks][: len(names)] == names
    assert all(check.passed for check in checks)
    assert all(check.seconds >= 0 and check.found for check in checks)
    assert "no mixed prefill: separate, 5 graphs" in checks[4].found


def test_verification_names_a_refused_selection(tmp_path: Path) -> None:
    path = write_core(tmp_path / "a.core", CoreSpec(mixed=(), default_mixed=False))
    checks = {check.name: check.found for check in verify_core(path)}
    assert "mixed prefill: refused (mixed prefill cannot be served" in checks["selections"]


def test_verification_finds_a_flipped_byte(tmp_path: Path) -> None:
    path = write_core(tmp_path / "a.core")
    storage = path / "storage" / "rank0.safetensors"
    data = bytearray(storage.read_bytes())
    data[-100] ^= 4
    storage.write_bytes(data)
    with pytest.raises(DigestMismatchError):
        verify_core(path)


@pytest.mark.parametrize("name", ["norm", "layers.0.qkv"])
@pytest.mark.parametrize("layout", ["bf16p16", "q8p16", "q4p16"])
def test_verification_finds_values_that_are_not_finite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str, name: str
) -> None:
    spec = CoreSpec(layout=layout)
    stored = _with_infinity(spec, name)
    monkeypatch.setattr("tests.support.cores.weights", lambda _: stored)
    path = write_core(tmp_path / "a.core", spec)
    with pytest.raises(StorageInvalidError, match=f"storage.{name}: expected finite values"):
        verify_core(path)


def _with_infinity(spec: CoreSpec, name: str) -> dict[str, Weight]:
    stored = weights(spec)
    weight = stored[name]
    array = weight.array.copy()
    if name == "norm":
        array[-1] = np.inf
    else:
        # The last 16-bit word of the last block: a weight, a scale or a minimum.
        array[-2:] = np.frombuffer(b"\x80\x7f" if spec.layout == "bf16p16" else b"\x00\x7c", "u1")
    stored[name] = Weight(array, weight.n, weight.k)
    return stored


def test_verification_leaves_the_core_alone(core: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in core.rglob("*")}
    with open_core(core) as opened:
        digest = opened.digest
    verify_core(core)
    inspect_core(core)
    with open_core(core) as opened:
        assert opened.digest == digest
    assert {path: path.stat().st_mtime_ns for path in core.rglob("*")} == before


def test_what_is_no_core_is_refused(tmp_path: Path) -> None:
    for function in (inspect_core, verify_core):
        with pytest.raises(CoreError):
            function(tmp_path)


def test_a_program_is_listed_launch_by_launch(core: Path) -> None:
    lines = program_text(core, "decode-2").splitlines()
    assert lines[0].startswith("program decode-2 (tokens <= 2, seqs <= 2, logits <= 2)")
    with open_core(core) as opened:
        launches = opened.manifest.catalog.programs["decode-2"].launches
    listed = lines[lines.index("  launches") + 1 :]
    assert [f"<{launch.kernel}>" for launch in launches] == [x.split()[-1] for x in listed]
    with pytest.raises(SettingsError, match="no graph 'decode-3'") as caught:
        program_text(core, "decode-3")
    assert "decode-2" in (caught.value.hint or "")
