"""The GGUF parser: equal to the gguf package on good files, a fast clear error on bad ones."""

import struct
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import CheckpointError
from engine.export import formats
from engine.export.checkpoint.gguf_file import read_gguf

TYPES = gguf.GGMLQuantizationType


def write_file(path: Path, kinds: tuple[TYPES, ...]) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("a.number", 7)
    writer.add_string("a.text", "héllo")
    writer.add_array("a.list", ["x", "yz", ""])
    writer.add_array("a.ints", [1, -2, 3])
    writer.add_bool("a.flag", True)
    writer.add_float64("a.real", 0.25)
    rng = np.random.default_rng(0)
    for kind in kinds:
        values = rng.normal(size=(3, 64)).astype(np.float32)
        writer.add_tensor(f"t.{kind.name}", gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


SUPPORTED = (TYPES.F32, TYPES.F16, TYPES.BF16, TYPES.Q4_0, TYPES.Q4_1, TYPES.Q8_0)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_file(tmp_path_factory.mktemp("gguf") / "good.gguf", SUPPORTED)


def test_metadata_and_tensors_equal_the_gguf_package(good: Path) -> None:
    ours, theirs = read_gguf(good), gguf.GGUFReader(good)
    expected = {
        key: field.contents() for key, field in theirs.fields.items() if not key.startswith("GGUF.")
    }
    assert dict(ours.metadata) == expected
    assert set(ours.file.tensors) == {tensor.name for tensor in theirs.tensors}
    for tensor in theirs.tensors:
        stored = ours.file.tensor(tensor.name)
        assert stored.shape == tuple(int(size) for size in reversed(tensor.shape))
        assert stored.data.tobytes() == tensor.data.tobytes()
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        assert np.array_equal(formats.float32(stored), values)


def test_an_unsupported_type_is_named_with_its_tensor(tmp_path: Path) -> None:
    path = write_file(tmp_path / "q5.gguf", (TYPES.Q5_0,))
    with pytest.raises(CheckpointError, match=r"t\.Q5_0.*type Q5_0"):
        read_gguf(path)


def header(
    *, tensors: int = 1, keys: int = 0, dims: list[int] | int, kind: int = 0, offset: int = 0
) -> bytes:
    """A header with one tensor ``t``; ``dims`` an int: only the dimension count."""
    sizes = dims if isinstance(dims, list) else []
    count = len(sizes) if isinstance(dims, list) else dims
    return (
        b"GGUF"
        + struct.pack("<IQQ", 3, tensors, keys)
        + struct.pack("<Q1sI", 1, b"t", count)
        + struct.pack(f"<{len(sizes)}Q", *sizes)
        + struct.pack("<IQ", kind, offset)
    )


def text_key(key: bytes, kind: int, tail: bytes) -> bytes:
    return (
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", len(key)) + key
        + struct.pack("<I", kind) + tail
    )  # fmt: skip


HUGE = (1 << 64) - 1
BAD = {
    "dimension count": (header(dims=0xFFFFFFFF).ljust(256, b"\0"), "4294967295 dimensions"),
    "five dimensions": (header(dims=[1] * 5), "5 dimensions"),
    "wrapping product": (header(dims=[1 << 33, 1 << 33, 4]).ljust(256, b"\0"), "ends at byte"),
    "wrapping offset": (header(dims=[8], offset=HUGE - 31).ljust(256, b"\0"), "ends at byte"),
    "zero dimension": (header(dims=[0, 4]), "shape"),
    "partial block": (header(dims=[31], kind=2), "shape"),
    "offset beyond": (header(dims=[4], offset=1 << 40), "ends at byte"),
    "offset unaligned": (header(dims=[4], offset=1), "aligned"),
    "unknown type": (header(dims=[4], kind=77), "number 77"),
    "tensor count": (header(tensors=HUGE, dims=[4]), "tensors, more than"),
    "key count": (header(keys=HUGE, dims=[4]), "metadata entries, more than"),
    "key length": (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, HUGE) + bytes(64), "bytes long"),
    "string length": (text_key(b"k", 8, struct.pack("<Q", HUGE)), "inside the header"),
    "array length": (text_key(b"k", 9, struct.pack("<IQ", 4, HUGE)), "elements of metadata"),
    "string array": (text_key(b"k", 9, struct.pack("<IQ", 8, 1 << 60)), "elements of metadata"),
    "nested array": (text_key(b"k", 9, struct.pack("<IQ", 9, 1)), "unsupported type 9"),
    "value type": (text_key(b"k", 99, b""), "value type 99"),
    "not utf-8": (text_key(b"k", 8, struct.pack("<Q", 2) + b"\xff\xfe"), "UTF-8"),
    "alignment": (text_key(b"general.alignment", 4, struct.pack("<I", 3)), "multiple of 8"),
    "magic": (b"GGML" + bytes(60), "not a GGUF file"),
    "version 1": (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
    "big endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "short": (b"GGUF\x03", "inside the header"),
    "empty": (b"", "empty"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_header_is_refused_before_memory_is_taken(name: str, tmp_path: Path) -> None:
    data, message = BAD[name]
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match=message) as caught:
            read_gguf(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20
    assert str(path) in str(caught.value)


def test_overlapping_and_repeated_tensors_are_refused(tmp_path: Path) -> None:
    def info(name: bytes, offset: int) -> bytes:
        return struct.pack("<Q1sIQIQ", 1, name, 1, 16, 0, offset)

    start = b"GGUF" + struct.pack("<IQQ", 3, 2, 0)
    path = tmp_path / "bad.gguf"
    for second, message in ((info(b"b", 32), "overlap"), (info(b"a", 64), "occurs twice")):
        path.write_bytes((start + info(b"a", 0) + second).ljust(512, b"\0"))
        with pytest.raises(CheckpointError, match=message):
            read_gguf(path)


def test_a_truncated_file_is_refused_at_every_length(good: Path, tmp_path: Path) -> None:
    data = good.read_bytes()
    path = tmp_path / "cut.gguf"
    for size in range(1, len(data) - 64, 37):
        path.write_bytes(data[:size])
        with pytest.raises(CheckpointError):
            read_gguf(path)


@settings(max_examples=150, deadline=None)
@given(position=st.integers(0, 700), value=st.binary(min_size=1, max_size=8))
def test_a_changed_header_never_raises_anything_else(
    good: Path, position: int, value: bytes
) -> None:
    data = bytearray(good.read_bytes())
    data[position : position + len(value)] = value
    path = good.with_name("fuzzed.gguf")
    path.write_bytes(bytes(data))
    try:
        parsed = read_gguf(path)
    except CheckpointError:
        return
    for name in parsed.file.tensors:
        assert parsed.file.tensor(name).data.nbytes == parsed.file.tensors[name].size
