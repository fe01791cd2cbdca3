"""Tensors in read-only memory maps of checkpoint files."""

from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from engine.errors import CheckpointError
from engine.export.checkpoint.base import SourceDType, SourceTensor


class TensorInfo(Struct, frozen=True):
    """Where a tensor lies. shape: row-major; offset: bytes from the start of the file."""

    dtype: SourceDType
    shape: tuple[int, ...]
    offset: int
    size: int


class TensorFile(Struct, frozen=True):
    """A mapped file and the tensors in it. The map lives as long as a view of it does."""

    path: Path
    tensors: Mapping[str, TensorInfo]
    bytes: NDArray[np.uint8]

    def tensor(self, name: str) -> SourceTensor:
        """Return a tensor as a view of the file."""
        info = self.tensors[name]
        rows = prod(info.shape[:-1])
        data = self.bytes[info.offset : info.offset + info.size].reshape(rows, -1)
        return SourceTensor(name, info.dtype, info.shape, data)


def map_file(path: Path) -> NDArray[np.uint8]:
    """Map a file read-only as bytes. Raises CheckpointError when it is empty or unreadable."""
    try:
        if path.stat().st_size == 0:
            raise CheckpointError(f"{path} is empty")
        return np.memmap(path, dtype=np.uint8, mode="r").view(np.ndarray)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error


def check_extents(
    fail: Callable[[str], CheckpointError], tensors: Mapping[str, TensorInfo], size: int
) -> None:
    """Refuse tensors that end outside ``size`` bytes or overlap one another."""
    end, last = 0, ""
    for name, info in sorted(tensors.items(), key=lambda item: item[1].offset):
        if info.offset + info.size > size:
            raise fail(
                f"tensor {name!r} ends at byte {info.offset + info.size}, the file at {size}"
            )
        if info.offset < end:
            raise fail(f"tensors {last!r} and {name!r} overlap")
        end, last = info.offset + info.size, name
