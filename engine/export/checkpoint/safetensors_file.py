"""safetensors container: a bounded header parser and mapped tensors (safetensors specification)."""

import json
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

from engine.errors import CheckpointError
from engine.export.checkpoint.base import BLOCKS, SourceDType
from engine.export.checkpoint.mapped import TensorFile, TensorInfo, check_extents, map_file

MAX_HEADER_BYTES = 100_000_000
"""The specification's limit."""
MAX_DIMS = 8
PLAIN: tuple[SourceDType, ...] = ("F32", "F16", "BF16")


def read_safetensors(path: Path) -> TensorFile:
    """Map and parse a safetensors file. Raises CheckpointError that says what is wrong."""
    data = map_file(path)
    size = int.from_bytes(data[:8].tobytes(), "little")
    if data.size < 8 or size > min(data.size - 8, MAX_HEADER_BYTES):
        raise CheckpointError(
            f"{path}: the header claims {size} bytes, more than the file of {data.size} can hold"
        )
    header = parse_object(f"{path}: header", data[8 : 8 + size].tobytes())
    header.pop("__metadata__", None)
    tensors = {name: _tensor(path, name, entry, 8 + size) for name, entry in header.items()}
    check_extents(lambda message: CheckpointError(f"{path}: {message}"), tensors, int(data.size))
    return TensorFile(path, MappingProxyType(tensors), data)


def parse_object(source: str, data: bytes) -> dict[str, Any]:
    """Parse a JSON object; a key that occurs twice is refused. Raises CheckpointError."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise CheckpointError(f"{source}: a key occurs twice in one object")
        return found

    try:
        value = json.loads(data, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{source} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{source} is not a JSON object")
    return value


def _tensor(path: Path, name: str, entry: object, base: int) -> TensorInfo:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError(f"{path}: tensor {name!r} needs dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if dtype not in PLAIN:
        raise CheckpointError(
            f"{path}: tensor {name!r} has type {dtype}, which is not supported",
            f"Types that are read from safetensors: {', '.join(PLAIN)}.",
        )
    if not _sizes(shape) or not 1 <= len(shape) <= MAX_DIMS or 0 in shape:
        raise CheckpointError(f"{path}: tensor {name!r} has the bad shape {shape!r:.80}")
    if not _sizes(offsets) or len(offsets) != 2:
        raise CheckpointError(f"{path}: tensor {name!r} has bad data_offsets {offsets!r:.80}")
    size = prod(shape) * BLOCKS[dtype][1]
    if offsets[1] - offsets[0] != size:
        raise CheckpointError(
            f"{path}: tensor {name!r} spans {offsets[1] - offsets[0]} bytes, its shape needs {size}"
        )
    return TensorInfo(dtype, tuple(shape), base + offsets[0], size)


def _sizes(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)
