"""A storage file whose header says something else than the storage table."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.core.digests import file_digest, root_digest
from engine.core.errors import FormatError, StorageInvalidError
from engine.core.reader import open_core
from tests.support.cores import write_core

FILE = "storage/rank0.safetensors"
Change = Callable[[dict[str, Any]], Any]


@pytest.fixture
def core(tmp_path: Path) -> Path:
    return write_core(tmp_path / "a.core")


def seal(core: Path) -> None:
    """State the storage file's digest anew, as somebody who knows the format would."""
    values = json.loads((core / "core.json").read_text())
    for section in values["sections"]:
        if section["path"] == FILE:
            section["digest"] = file_digest(core / FILE)
    values["root_digest"] = root_digest(values)
    (core / "core.json").write_text(json.dumps(values))


def rewrite(core: Path, change: Change) -> None:
    data = bytearray((core / FILE).read_bytes())
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    change(header)
    data[8 : 8 + length] = json.dumps(header).encode().ljust(length)
    (core / FILE).write_bytes(data)
    seal(core)


def shift(header: dict[str, Any]) -> None:
    header["norm"]["data_offsets"] = [x + 64 for x in header["norm"]["data_offsets"]]


CHANGES: list[tuple[Change, str]] = [
    (lambda h: h["norm"].update(dtype="I32"), "header.norm.dtype: expected 'F32', found 'I32'"),
    (
        lambda h: h["norm"]["shape"].append(1),
        r"header.norm.shape: expected \[\d+\], found \[\d+, 1\]",
    ),
    (shift, r"header.norm.data_offsets: expected \[\d+, \d+\], found \[\d+, \d+\]"),
    (lambda h: h["norm"].pop("dtype"), "header.norm.dtype: expected 'F32', found nothing"),
    (lambda h: h["norm"].update(more=1), "header.norm.more: expected nothing, found 1"),
    (lambda h: h.pop("norm"), "header.norm: expected the tensor of the storage table, found noth"),
    (
        lambda h: h.update(norm=[]),
        "header.norm: expected the tensor of the storage table, found an",
    ),
    (lambda h: h.update(other=h["norm"]), "header.other: expected a tensor of the storage table"),
]


@pytest.mark.parametrize(("change", "said"), CHANGES, ids=range(len(CHANGES)))
def test_what_differs_is_named(core: Path, change: Change, said: str) -> None:
    rewrite(core, change)
    with pytest.raises(StorageInvalidError, match=f"^{FILE}: {said}"):
        open_core(core)


def test_metadata_means_nothing(core: Path) -> None:
    rewrite(core, lambda h: h.update({"__metadata__": {"format": "pt"}}))
    with open_core(core) as opened:
        opened.verify_storage()


@pytest.mark.parametrize("length", [2**64 - 1, 2**40])
def test_a_header_longer_than_its_file(core: Path, length: int) -> None:
    data = bytearray((core / FILE).read_bytes())
    data[:8] = length.to_bytes(8, "little")
    (core / FILE).write_bytes(data)
    seal(core)
    with pytest.raises(StorageInvalidError, match=f"found a length of {length}"):
        open_core(core)


def test_a_header_that_is_no_json_object(core: Path) -> None:
    data = bytearray((core / FILE).read_bytes())
    data[8:10] = b"}{"
    (core / FILE).write_bytes(data)
    seal(core)
    with pytest.raises(FormatError, match="header"):
        open_core(core)
    data[8 : 8 + int.from_bytes(data[:8], "little")] = b"[]".ljust(
        int.from_bytes(data[:8], "little")
    )
    (core / FILE).write_bytes(data)
    seal(core)
    with pytest.raises(StorageInvalidError, match="expected an object, found an array"):
        open_core(core)
