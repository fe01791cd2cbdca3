"""docs/core-format.md: its tables name every key, and a reader made from it alone reads a core."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.core.reader import open_core
from engine.core.schema import (
    Canary,
    Candidate,
    Graph,
    Identity,
    Kernel,
    KVLayout,
    Limits,
    Machine,
    ModelSpec,
    Section,
    StepTime,
    StorageTensor,
    TuningRecord,
)
from engine.export.tokenizer.splits import SPLITS
from engine.ir.ops import INPUTS, OPS
from engine.ir.program import Space
from engine.kernels.layouts import LAYOUTS, dequantise
from engine.text.info import GenerationDefaults, PieceRules, TextInfo
from tests.support.cores import CoreSpec, write_core

DOCUMENT = Path(__file__).parents[3] / "docs" / "core-format.md"
PIECE = 4 * 1024 * 1024


@pytest.fixture(scope="module")
def document() -> str:
    return DOCUMENT.read_text(encoding="utf-8")


def section(document: str, heading: str) -> str:
    """The text under a heading, up to the next one of any level."""
    found = re.search(rf"^#+ `?{re.escape(heading)}`?$(.*?)(?=^#|\Z)", document, re.M | re.S)
    assert found, f"no heading {heading!r}"
    return found[1]


def quoted(text: str) -> set[str]:
    return set(re.findall(r"`([^`\n]+)`", text))


@pytest.mark.parametrize(
    ("heading", "types"),
    [
        ("Identity", [Identity]),
        ("ModelSpec", [ModelSpec, KVLayout]),
        ("Limits", [Limits]),
        ("Graph", [Graph]),
        ("Kernel", [Kernel]),
        ("TuningRecord", [TuningRecord, Candidate]),
        ("Machine", [Machine]),
        ("StepTime", [StepTime]),
        ("Canary", [Canary]),
        ("StorageTensor", [StorageTensor]),
        ("Section", [Section]),
        ("text.json", [TextInfo, PieceRules, GenerationDefaults]),
    ],
)
def test_every_key_is_described(document: str, heading: str, types: list[Any]) -> None:
    names = {name for kind in types for name in kind.__struct_fields__}
    assert names <= quoted(section(document, heading))


def test_every_operation_input_space_and_layout_is_described(document: str) -> None:
    operations = section(document, "Operations")
    for op, spec in OPS.items():
        row = next(line for line in operations.splitlines() if line.startswith(f"| `{op}`"))
        for name in (*spec.inputs, *spec.attrs, *spec.optional_inputs):
            assert re.search(rf"\b{name}\b", row), f"{op}: {name}"
    assert set(INPUTS) <= quoted(section(document, "Host inputs"))
    assert {space.value for space in Space} <= quoted(document)
    assert set(LAYOUTS) <= quoted(section(document, "Packed layouts"))


def test_every_pre_tokenizer_kind_is_named(document: str) -> None:
    table = section(document, "Where tokenizers come from")
    assert all(re.search(rf"\b{re.escape(kind)}\b", table) for kind in SPLITS)


def test_keys_of_the_manifest(document: str, tmp_path: Path) -> None:
    values = json.loads((write_core(tmp_path / "core") / "core.json").read_text())
    rows = re.findall(r"^\| `(\w+)` \|", section(document, "The manifest, `core.json`"), re.M)
    assert rows == list(values)


def test_digests_as_described(tmp_path: Path) -> None:
    core = write_core(tmp_path / "core", text={"text.json": b"{}", "large": b"x" * (2 * PIECE + 5)})
    values = json.loads((core / "core.json").read_text())
    for entry in values["sections"]:
        assert entry["digest"] == described_digest((core / entry["path"]).read_bytes())
        assert entry["size"] == (core / entry["path"]).stat().st_size
    root = values.pop("root_digest")
    canonical = json.dumps(values, sort_keys=True, separators=(",", ":")).encode()
    assert root == hashlib.sha256(canonical).hexdigest()


def described_digest(data: bytes) -> str:
    parts = [data[i : i + PIECE] for i in range(0, len(data), PIECE)] or [b""]
    if len(parts) == 1:
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def test_programs_as_described(tmp_path: Path) -> None:
    path = write_core(tmp_path / "core")
    values = json.loads((path / "programs.json").read_text())
    with open_core(path) as core:
        programs = core.manifest.catalog.programs
    assert values["programs"].keys() == programs.keys()
    for name, entry in values["programs"].items():
        body = values["bodies"][entry["body"]]
        offsets = iter(entry["offsets"])
        for slot in body["buffers"]:
            buffer = programs[name].buffers[slot["name"]]
            placed = slot["space"] in ("temp", "output")
            assert buffer.offset == (next(offsets) if placed else None)
            assert (buffer.space, buffer.dtype, list(buffer.shape)) == (
                slot["space"],
                slot["dtype"],
                slot["shape"],
            )
        assert next(offsets, None) is None
        assert [launch.op for launch in programs[name].launches] == [
            launch["op"] for launch in body["launches"]
        ]


@pytest.mark.parametrize("layout", ["q4p16", "q8p16", "bf16p16"])
def test_weights_as_described(layout: str, tmp_path: Path) -> None:
    path = write_core(tmp_path / "core", CoreSpec(layout=layout))
    packed = [t for t in json.loads((path / "core.json").read_text())["storage"] if t["k"]]
    assert {tensor["layout"] for tensor in packed} == {layout}
    for tensor in packed[:3]:
        data = (path / tensor["file"]).read_bytes()[tensor["offset"] :][: tensor["size"]]
        assert hashlib.sha256(data).hexdigest() == tensor["digest"]
        n, k = tensor["n"], tensor["k"]
        expected = dequantise(layout, np.frombuffer(data, np.uint8), n, k)
        for row, column in ((0, 0), (1, 5), (17, 33), (n - 1, k - 1), (15, 31), (20, 12)):
            assert described_value(layout, data, k, row, column) == expected[row, column]


def described_value(layout: str, data: bytes, k: int, row: int, column: int) -> float:
    """One weight, read byte by byte as the document says."""
    size = {"q4p16": 320, "q8p16": 544, "bf16p16": 1024}[layout]
    start = (row // 16 * (-(-k // 32)) + column // 32) * size
    block, c, at = data[start : start + size], row % 16, column % 32
    if layout == "bf16p16":
        pair = block[64 * (at // 2) + 4 * c :][2 * (at % 2) :][:2]
        return float(np.frombuffer(b"\0\0" + pair, "<f4")[0])
    if layout == "q8p16":
        code = block[64 * (at // 4) + 4 * c + at % 4] - 128
        return float(np.float32(code * float(half(block, 512 + 2 * c))))
    byte = block[64 * (at // 8) + 4 * c + at % 4]
    code = byte >> 4 if at % 8 >= 4 else byte & 15
    d, m = float(half(block, 256 + 2 * c)), float(half(block, 288 + 2 * c))
    return float(np.float32(code * d + m))


def half(block: bytes, offset: int) -> NDArray[np.float16]:
    value: NDArray[np.float16] = np.frombuffer(block, "<f2", 1, offset)[0]
    return value
