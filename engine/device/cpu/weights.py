"""Storage tensors as the bytes that native kernels read."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from engine.core.safetensors import ALIGNMENT
from engine.errors import DeviceError

Bytes = NDArray[np.uint8]


def as_bytes(name: str, tensor: NDArray[np.generic]) -> Bytes:
    """Return a tensor's bytes: a view where it is aligned, as in a mapped core, else a copy.

    Raises DeviceError for a tensor that is not contiguous.
    """
    if not tensor.flags.c_contiguous:
        raise DeviceError(f"storage tensor {name!r} is not contiguous")
    flat = tensor.reshape(-1).view(np.uint8)
    if flat.ctypes.data % ALIGNMENT == 0:
        return flat
    copy = aligned_bytes(flat.size)
    copy[:] = flat
    return copy


def aligned_bytes(size: int) -> Bytes:
    """Return uninitialised bytes at a multiple of ``ALIGNMENT``."""
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size]


def all_bytes(tensors: Mapping[str, NDArray[np.generic]]) -> dict[str, Bytes]:
    """Return every tensor's bytes, by name."""
    return {name: as_bytes(name, tensor) for name, tensor in tensors.items()}
