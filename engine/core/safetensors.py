"""Safetensors files with 64-byte aligned tensors, written as a stream.

Format (huggingface/safetensors, README "Format"): 8 bytes little-endian header length, a JSON
header (name -> dtype, shape, data_offsets) that may end in spaces, then the data without holes.
Where a tensor's size is not a multiple of 64, a ``padding.<n>`` U8 tensor fills the gap. The
header comes first but is known last, so space for it is reserved and filled with spaces.
"""

import json
import os
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 64
"""Bytes that tensors are aligned to: a cache line, and a vector register."""
RESERVED = 64 << 10
"""Bytes first reserved for length and header."""
PADDING = "padding."
NUMPY_DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),  # numpy has no bfloat16: its bits
    "I32": np.dtype("<i4"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
}
DTYPE_NAMES: dict[np.dtype[Any], str] = {dtype: name for name, dtype in NUMPY_DTYPES.items()}


def align(size: int) -> int:
    """Round up to the alignment of tensors."""
    return -(-size // ALIGNMENT) * ALIGNMENT


class TensorFile:
    """One safetensors file being written. ``close`` completes it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO = path.open("xb")
        self._header: dict[str, Any] = {}
        self._end = 0
        self._file.seek(RESERVED)

    def append(self, name: str, array: NDArray[np.generic]) -> tuple[int, memoryview]:
        """Write a tensor. Returns its offset in the file (see ``close``) and its bytes."""
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        start = self._end
        self._entry(name, DTYPE_NAMES[array.dtype], list(array.shape), len(data))
        self._file.write(data)
        gap = align(self._end) - self._end
        if gap:
            self._entry(f"{PADDING}{len(self._header)}", "U8", [gap], gap)
            self._file.write(bytes(gap))
        return RESERVED + start, data

    def _entry(self, name: str, dtype: str, shape: list[int], size: int) -> None:
        offsets = [self._end, self._end + size]
        self._header[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        self._end += size

    def flush(self) -> None:
        """Hand what was appended to the system, so that the file can be mapped."""
        self._file.flush()

    def close(self) -> int:
        """Write the header and sync the file.

        Returns by how many bytes all offsets moved: 0, but for a header above its reserve.
        """
        header = json.dumps(self._header, separators=(",", ":")).encode()
        space = max(RESERVED, align(8 + len(header)))
        if space > RESERVED:
            self._file.flush()
            move_up(self.path, RESERVED, space - RESERVED)
        self._file.seek(0)
        self._file.write((space - 8).to_bytes(8, "little"))
        self._file.write(header.ljust(space - 8))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return space - RESERVED

    def abandon(self) -> None:
        """Close the file as it is."""
        self._file.close()


def move_up(path: Path, start: int, by: int, piece: int = 16 << 20) -> None:
    """Move a file's bytes from ``start`` on by ``by``, last piece first: none is lost."""
    with path.open("r+b") as file:
        end = file.seek(0, os.SEEK_END)
        for stop in range(end, start, -piece):
            begin = max(start, stop - piece)
            file.seek(begin)
            data = file.read(stop - begin)
            file.seek(begin + by)
            file.write(data)
