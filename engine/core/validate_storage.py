"""Validation of the storage table: sections, offsets, sizes, and that the ranks agree."""

from itertools import pairwise

from engine.core.codec import PROGRAMS
from engine.core.errors import CoreFileError, RankMismatchError, StorageInvalidError
from engine.core.paths import TEXT_FOLDER, storage_path
from engine.core.safetensors import ALIGNMENT, NUMPY_DTYPES
from engine.core.schema import Manifest, StorageTensor
from engine.kernels.layouts import LAYOUTS, packed_bytes

PLAIN = "plain"


def validate_storage(manifest: Manifest) -> None:
    """Check the tables of sections and tensors against each other.

    Raises CoreFileError, StorageInvalidError or RankMismatchError.
    """
    sizes = {section.path: section.size for section in manifest.sections}
    by_file: dict[str, list[StorageTensor]] = {}
    for tensor in manifest.catalog.storage:
        _check_tensor(tensor, sizes)
        by_file.setdefault(tensor.file, []).append(tensor)
    for tensors in by_file.values():
        _check_apart(tensors)
    _check_sections(sizes, by_file)
    _check_ranks(manifest)


def _check_tensor(tensor: StorageTensor, sizes: dict[str, int]) -> None:
    where = f"storage.{tensor.name}"
    if tensor.file != storage_path(tensor.rank) or tensor.file not in sizes:
        raise StorageInvalidError(
            f"{where}.file: expected {storage_path(tensor.rank)}, found {tensor.file!r}"
        )
    dtype = NUMPY_DTYPES.get(tensor.dtype)
    if dtype is None:
        raise StorageInvalidError(
            f"{where}.dtype: expected one of {', '.join(NUMPY_DTYPES)}, found {tensor.dtype!r}"
        )
    size = dtype.itemsize
    for dim in tensor.shape:
        if dim < 0:
            raise StorageInvalidError(f"{where}.shape: expected sizes, found {dim}")
        size *= dim
    if tensor.size != size:
        raise StorageInvalidError(f"{where}.size: expected {size} bytes, found {tensor.size}")
    if tensor.offset < 0 or tensor.offset % ALIGNMENT:
        raise StorageInvalidError(
            f"{where}.offset: expected a multiple of {ALIGNMENT}, found {tensor.offset}"
        )
    if tensor.offset + size > sizes[tensor.file]:
        raise StorageInvalidError(
            f"{where}: expected to end within {tensor.file} of {sizes[tensor.file]} bytes, "
            f"found its end at {tensor.offset + size}"
        )
    _check_layout(tensor, where)


def _check_layout(tensor: StorageTensor, where: str) -> None:
    if tensor.layout != PLAIN and tensor.layout not in LAYOUTS:
        raise StorageInvalidError(
            f"{where}.layout: expected {PLAIN} or one of {', '.join(LAYOUTS)}, "
            f"found {tensor.layout!r}"
        )
    packed = tensor.layout != PLAIN
    if packed != (tensor.n > 0) or packed != (tensor.k > 0):
        raise StorageInvalidError(
            f"{where}: expected n and k for packed layouts alone, "
            f"found {tensor.layout} with n {tensor.n}, k {tensor.k}"
        )
    if not packed:
        return
    try:
        size = packed_bytes(tensor.layout, tensor.n, tensor.k)
    except ValueError as error:
        raise StorageInvalidError(f"{where}: {error}") from error
    if (tensor.dtype, tensor.size) != ("U8", size):
        raise StorageInvalidError(
            f"{where}: expected U8 of {size} bytes for {tensor.layout} [{tensor.n}, {tensor.k}], "
            f"found {tensor.dtype} of {tensor.size}"
        )


def _check_apart(tensors: list[StorageTensor]) -> None:
    for first, second in pairwise(sorted(tensors, key=lambda tensor: tensor.offset)):
        if first.offset + first.size > second.offset:
            raise StorageInvalidError(f"storage.{second.name}: overlaps {first.name}")


def _check_sections(sizes: dict[str, int], by_file: dict[str, list[StorageTensor]]) -> None:
    if PROGRAMS not in sizes:
        raise CoreFileError(f"sections: expected {PROGRAMS}, found no such entry")
    for path, size in sizes.items():
        known = path == PROGRAMS or path in by_file or path.startswith(f"{TEXT_FOLDER}/")
        if not known:
            raise CoreFileError(f"sections: {path!r} is no part of a core")
        if size < 0:
            raise CoreFileError(f"sections.{path}.size: expected 0 or more, found {size}")


def _check_ranks(manifest: Manifest) -> None:
    size = manifest.identity.tensor_parallel_size
    if size < 1:
        raise RankMismatchError(f"identity.tensor_parallel_size: expected 1 or more, found {size}")
    shards: dict[int, dict[str, tuple[str, str, str]]] = {}
    for tensor in manifest.catalog.storage:
        if not 0 <= tensor.rank < size:
            raise RankMismatchError(
                f"storage.{tensor.name}.rank: expected below {size}, found {tensor.rank}"
            )
        shard = shards.setdefault(tensor.rank, {})
        shard[tensor.name] = (tensor.weight, tensor.layout, tensor.dtype)
    if len(shards) < size:  # which may be any number
        missing = next(rank for rank in range(size) if rank not in shards)
        raise RankMismatchError(f"storage: expected {size} ranks, found no tensor of {missing}")
    for rank, shard in shards.items():
        if shard == shards[0]:
            continue
        names = sorted(
            name
            for name in shard.keys() | shards[0].keys()
            if shard.get(name) != shards[0].get(name)
        )
        raise RankMismatchError(f"storage: rank {rank} and rank 0 differ in {', '.join(names[:5])}")
