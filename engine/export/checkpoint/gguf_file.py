"""GGUF container: a bounded header parser and mapped tensors (GGUF specification, versions 2, 3).

Every length is compared with the bytes that are left before anything is allocated; all sizes are
Python integers, so no product can wrap.
"""

import struct
from collections.abc import Mapping
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from engine.errors import CheckpointError
from engine.export.checkpoint.base import BLOCKS, SourceDType
from engine.export.checkpoint.mapped import TensorFile, TensorInfo, check_extents, map_file

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_DIMS = 4
MAX_KEY_BYTES = 65535
STRING, ARRAY = 8, 9
SCALARS: Mapping[int, str] = MappingProxyType(
    {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
)
"""Metadata value type -> struct code."""
TENSOR_TYPES: Mapping[int, SourceDType] = MappingProxyType(
    {0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 8: "Q8_0", 30: "BF16"}
)
OTHER_TYPES: Mapping[int, str] = MappingProxyType(
    {
        6: "Q5_0", 7: "Q5_1", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K",
        14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
        20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32",
        27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
    }
)  # fmt: skip
"""Types that are refused, for the message."""


class GgufFile(Struct, frozen=True):
    """A parsed GGUF file. metadata values: int, float, bool, str, or a list of those."""

    file: TensorFile
    metadata: Mapping[str, Any]


def read_gguf(path: Path) -> GgufFile:
    """Map and parse a GGUF file. Raises CheckpointError that says what is wrong and where."""
    data = map_file(path)
    cursor = _Cursor(path, data)
    if cursor.take(4) != MAGIC:
        raise CheckpointError(f"{path} is not a GGUF file (it does not begin with 'GGUF')")
    version = cursor.unpack("I")
    if version not in VERSIONS:
        big_endian = int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS
        what = "is big-endian" if big_endian else f"has GGUF version {version}"
        raise CheckpointError(f"{path} {what}; versions 2 and 3, little-endian, are read")
    tensor_count, key_count = cursor.unpack("Q"), cursor.unpack("Q")
    cursor.expect(key_count, 8 + 4 + 1, "metadata entries")
    metadata = _read_metadata(cursor, key_count)
    cursor.expect(tensor_count, 8 + 4 + 8 + 4 + 8, "tensors")
    tensors = _read_tensors(cursor, tensor_count, _alignment(path, metadata))
    return GgufFile(TensorFile(path, MappingProxyType(tensors), data), MappingProxyType(metadata))


class _Cursor:
    """Reads the header front to back; refuses to run past the end of the file."""

    def __init__(self, path: Path, data: NDArray[np.uint8]) -> None:
        self.path = path
        self.position = 0
        self.size = int(data.size)
        self._view = data.data

    def fail(self, message: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {message} (at byte {self.position})")

    def expect(self, count: int, least: int, what: str) -> None:
        """Refuse a count of things of at least ``least`` bytes each that the file cannot hold."""
        if count * least > self.size - self.position:
            raise self.fail(f"the header claims {count} {what}, more than the file can hold")

    def take(self, size: int) -> bytes:
        if size > self.size - self.position:
            raise self.fail(f"the file ends inside the header: {size} more bytes expected")
        start, self.position = self.position, self.position + size
        return bytes(self._view[start : self.position])

    def unpack(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def string(self, what: str, limit: int | None = None) -> str:
        length = self.unpack("Q")
        if limit is not None and length > limit:
            raise self.fail(f"{what} is {length} bytes long, at most {limit} are allowed")
        try:
            return self.take(length).decode()
        except UnicodeDecodeError as error:
            raise self.fail(f"{what} is not valid UTF-8") from error


def _read_metadata(cursor: _Cursor, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for _ in range(count):
        key = cursor.string("a metadata key", MAX_KEY_BYTES)
        if key in metadata:
            raise cursor.fail(f"metadata key {key!r} occurs twice")
        metadata[key] = _read_value(cursor, key, cursor.unpack("I"))
    return metadata


def _read_value(cursor: _Cursor, key: str, kind: int) -> Any:
    if kind == STRING:
        return cursor.string(f"metadata {key!r}")
    if kind == ARRAY:
        return _read_array(cursor, key)
    if kind not in SCALARS:
        raise cursor.fail(f"metadata {key!r} has unknown value type {kind}")
    return cursor.unpack(SCALARS[kind])


def _read_array(cursor: _Cursor, key: str) -> list[Any]:
    kind, count = cursor.unpack("I"), cursor.unpack("Q")
    what = f"elements of metadata {key!r}"
    if kind == STRING:
        cursor.expect(count, 8, what)
        label = f"an element of {key!r}"
        return [cursor.string(label) for _ in range(count)]
    if kind not in SCALARS:
        raise cursor.fail(f"metadata {key!r} is an array of unsupported type {kind}")
    size = struct.calcsize("<" + SCALARS[kind])
    cursor.expect(count, size, what)
    return list(struct.unpack(f"<{count}{SCALARS[kind]}", cursor.take(count * size)))


def _alignment(path: Path, metadata: Mapping[str, Any]) -> int:
    value = metadata.get("general.alignment", 32)
    if type(value) is not int or value < 8 or value % 8 or value > 1 << 20:
        raise CheckpointError(f"{path}: general.alignment is {value!r}, not a multiple of 8")
    return value


def _read_tensors(cursor: _Cursor, count: int, alignment: int) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    for _ in range(count):
        name = cursor.string("a tensor name", MAX_KEY_BYTES)
        if name in tensors:
            raise cursor.fail(f"tensor {name!r} occurs twice")
        tensors[name] = _read_tensor(cursor, name, alignment)
    base = -(-cursor.position // alignment) * alignment
    placed = {
        name: TensorInfo(info.dtype, info.shape, base + info.offset, info.size)
        for name, info in tensors.items()
    }
    check_extents(cursor.fail, placed, cursor.size)
    return placed


def _read_tensor(cursor: _Cursor, name: str, alignment: int) -> TensorInfo:
    dims = cursor.unpack("I")
    if not 1 <= dims <= MAX_DIMS:
        raise cursor.fail(f"tensor {name!r} has {dims} dimensions, 1 to {MAX_DIMS} are allowed")
    shape = tuple(reversed([cursor.unpack("Q") for _ in range(dims)]))
    kind, offset = cursor.unpack("I"), cursor.unpack("Q")
    if kind not in TENSOR_TYPES:
        label = OTHER_TYPES.get(kind, f"number {kind}")
        raise CheckpointError(
            f"{cursor.path}: tensor {name!r} has type {label}, which is not supported",
            f"Types that are read: {', '.join(BLOCKS)}.",
        )
    dtype = TENSOR_TYPES[kind]
    values, block_bytes = BLOCKS[dtype]
    if 0 in shape or shape[-1] % values:
        raise cursor.fail(f"tensor {name!r} of type {dtype} cannot have the shape {list(shape)}")
    if offset % alignment:
        raise cursor.fail(f"tensor {name!r} is not aligned to {alignment} bytes")
    return TensorInfo(dtype, shape, offset, prod(shape) // values * block_bytes)
