"""Versions of the core format: one older version is read and served, others are refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.core.digests import root_digest
from engine.core.errors import FormatError, VersionError
from engine.core.reader import open_core
from engine.core.schema import FORMAT_VERSION, READABLE_VERSIONS
from engine.factory import load_engine
from engine.types import GenerationRequest, SamplingParams
from engine.verification import verify_core
from tests.support.serving import collect, ids

FIXTURES = Path(__file__).parents[2] / "fixtures"
VERSION_1 = FIXTURES / "core-v1"
"""A two-layer Llama, Q4_1 and Q8_0, exported by the last writer of version 1."""


@pytest.fixture
def core(tmp_path: Path) -> Path:
    return Path(shutil.copytree(VERSION_1, tmp_path / "core"))


def rewrite(core: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    """Change the manifest and sign it again."""
    values = json.loads((core / "core.json").read_text())
    edit(values)
    values["root_digest"] = root_digest(values)
    (core / "core.json").write_text(json.dumps(values))


def test_the_window_is_the_last_two_versions() -> None:
    assert READABLE_VERSIONS == (FORMAT_VERSION - 1, FORMAT_VERSION) == (1, 2)
    assert json.loads((VERSION_1 / "core.json").read_text())["format_version"] == 1


def test_a_core_of_version_1_has_the_defaults_of_what_it_lacks() -> None:
    with open_core(VERSION_1) as core:
        manifest = core.manifest
    assert manifest.format_version == 1
    catalog = manifest.catalog
    assert catalog.machines == catalog.step_times == catalog.canaries == ()
    assert {graph.reason for graph in catalog.graphs} == {""}
    assert {record.reason for record in catalog.tuning} == {""}
    candidates = [c for record in catalog.tuning for c in record.candidates]
    assert {(c.low, c.high, c.checked, c.refused) for c in candidates} == {(None,) * 4}


def test_a_core_of_version_1_verifies() -> None:
    checks = {check.name: check for check in verify_core(VERSION_1)}
    assert all(check.passed for check in checks.values())
    assert {"digests", "decode-1", "prefill-64", "mixed-64"} <= checks.keys()


@pytest.mark.parametrize("mixed", [True, False])
async def test_a_core_of_version_1_serves_what_it_served(mixed: bool) -> None:
    """Recorded tokens, greedy and drawn: the last writer's of version 1, but for what replaced
    numerics classes draw (``upgrade``)."""
    answers = json.loads((FIXTURES / "core-v1-answers.json").read_text())
    engine = load_engine(EngineConfig(core=VERSION_1, threads=1, mixed_prefill=mixed))
    engine.start()
    requests = []
    for answer in answers:
        n = answer["prompt"]
        prompt = tuple((j * 37 + n) % 690 + 3 for j in range(n))
        sampling = SamplingParams(
            max_tokens=12, temperature=answer["temperature"], seed=n, ignore_eos=True
        )
        requests.append(GenerationRequest(str(n), prompt, sampling))
    streams = engine.submit(requests)
    found = [ids(await collect(stream)) for stream in streams]
    await engine.close()
    assert found == [answer["tokens"] for answer in answers]


@pytest.mark.parametrize("version", [0, 3])
def test_a_version_outside_the_window_is_refused_with_the_window(core: Path, version: int) -> None:
    rewrite(core, lambda values: values.update(format_version=version))
    with pytest.raises(VersionError, match=f"expected 1 to 2, found {version}") as caught:
        open_core(core)
    assert caught.value.exit_code == 3


EARLY: dict[str, Callable[[dict[str, Any]], Any]] = {
    "canaries": lambda v: v.update(canaries=[]),
    r"graphs\[1\].reason": lambda v: v["graphs"][1].update(reason="x"),
    r"tuning\[0\].reason": lambda v: v["tuning"][0].update(reason="x"),
    r"tuning\[2\].candidates\[0\].low": lambda v: v["tuning"][2]["candidates"][0].update(low=1.0),
}


@pytest.mark.parametrize("key", EARLY)
def test_keys_of_version_2_are_unknown_in_version_1(core: Path, key: str) -> None:
    rewrite(core, EARLY[key])
    with pytest.raises(FormatError, match=f"{key}: expected no such key in format version 1"):
        open_core(core)


@pytest.mark.parametrize("table", ["machines", "step_times", "canaries"])
def test_version_2_is_not_lenient(core: Path, table: str) -> None:
    """A core that says version 2 has every key of it."""

    def newer(values: dict[str, Any]) -> None:
        values.update(format_version=2, machines=[], step_times=[], canaries=[])
        for entry in [*values["graphs"], *values["tuning"]]:
            entry["reason"] = ""
        for record in values["tuning"]:
            for candidate in record["candidates"]:
                candidate.update(low=None, high=None, checked=None, refused=None)

    rewrite(core, newer)
    with open_core(core) as opened:
        assert opened.manifest.format_version == 2
    rewrite(core, lambda values: values.pop(table))
    with pytest.raises(FormatError, match=f"{table}: expected a value, found nothing"):
        open_core(core)


@pytest.mark.parametrize("wrong", [None, {}, [1], "x"])
@pytest.mark.parametrize("table", ["graphs", "tuning"])
def test_tables_of_a_wrong_type_are_refused_in_version_1_too(
    core: Path, table: str, wrong: object
) -> None:
    rewrite(core, lambda values: values.update({table: wrong}))
    with pytest.raises(FormatError, match=table):
        open_core(core)
