"""Maps the storage files of a core and hashes them on threads of its own."""

import json
import mmap
import os
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from engine.core.digests import combine, piece_digest, pieces, root_digest
from engine.core.errors import CoreFileError, DigestMismatchError
from engine.core.paths import MANIFEST, STORAGE_FOLDER, inside
from engine.errors import CoreError

LARGEST_MANIFEST = 256 << 20
"""Bytes of the largest manifest that is read."""
_THREADS = 8


class StorageHashing:
    """Hashes the storage files' pieces on threads of its own; ``stop`` ends them early."""

    def __init__(self, maps: Mapping[str, memoryview]) -> None:
        self.maps = maps
        self._stopped = threading.Event()
        self._executor: ThreadPoolExecutor | None = None
        self._futures: dict[str, list[Future[bytes]]] = {}

    def begin(self) -> None:
        """Start the threads, once."""
        if self._executor is not None:
            return
        threads = min(_THREADS, os.cpu_count() or 1)
        executor = ThreadPoolExecutor(threads, thread_name_prefix="core-digest")
        self._futures = {
            path: [executor.submit(self._digest, piece) for piece in pieces(view)]
            for path, view in self.maps.items()
        }
        executor.shutdown(wait=False)
        self._executor = executor

    def _digest(self, piece: memoryview) -> bytes:
        return b"" if self._stopped.is_set() else piece_digest(piece)

    def done(self) -> bool:
        """Whether ``result`` returns at once."""
        return self._executor is not None and all(
            future.done() for futures in self._futures.values() for future in futures
        )

    def result(self) -> dict[str, str]:
        """Wait for the digests of all files, by path."""
        if self._stopped.is_set():
            raise CoreError("the core was closed before its storage was verified")
        self.begin()
        return {
            path: combine(future.result() for future in futures)
            for path, futures in self._futures.items()
        }

    def stop(self) -> None:
        """End the threads; what is not hashed by then never is."""
        self._stopped.set()
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)


class EarlyHashing:
    """Hashing that began before the manifest was decoded and validated, from the sections that
    it names. ``root``: the core's folder, resolved."""

    def __init__(self, root: Path, values: dict[str, Any], hashing: StorageHashing) -> None:
        self.root = root
        self.hashing = hashing
        self._values = values

    def stop(self) -> None:
        """End the threads."""
        self.hashing.stop()

    def raise_if_damaged(self, path: Path) -> None:
        """Raise DigestMismatchError when this is the core at ``path``, its storage is hashed by
        now, and its manifest, which is whole, states another digest. Other faults are left to
        ``open_core``."""
        if os.path.realpath(path) != str(self.root) or not self.hashing.done():
            return
        found = self.hashing.result()
        for section in self._values["sections"]:
            name, stated = section["path"], section["digest"]
            if found.get(name, stated) != stated and self._whole():
                compare(name, stated, found[name])

    def _whole(self) -> bool:
        with suppress(ValueError, RecursionError):
            return self._values.get("root_digest") == root_digest(self._values)
        return False


def hash_early(path: Path) -> EarlyHashing | None:
    """Begin to hash the storage of the core at ``path``, if it looks like one; None if not.

    Needs nothing but the standard library, so that it can begin before what a start imports.
    """
    try:
        root = path.resolve(strict=True)
        manifest = root / MANIFEST
        if manifest.stat().st_size > LARGEST_MANIFEST:
            return None
        values = json.loads(manifest.read_bytes())
        sizes = {s["path"]: s["size"] for s in values["sections"] if is_storage(s["path"])}
        hashing = StorageHashing({name: map_file(root, name, n) for name, n in sizes.items()})
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RuntimeError, CoreError):
        return None  # told by open_core, with the key that is wrong
    hashing.begin()
    return EarlyHashing(root, values, hashing)


def storage_hashing(
    root: Path, sizes: Mapping[str, int], early: EarlyHashing | None
) -> StorageHashing:
    """Return hashing of the files of ``sizes``: the one that began early when it has just these,
    else one that has not begun. Raises CoreFileError."""
    if early is not None:
        begun = {path: len(view) for path, view in early.hashing.maps.items()}
        if early.root == root and begun == dict(sizes):
            return early.hashing
        early.hashing.stop()
    return StorageHashing({path: map_file(root, path, size) for path, size in sizes.items()})


def map_file(root: Path, path: str, size: int) -> memoryview:
    """Map one file read-only. Raises CoreFileError."""
    with opened(root, path, size) as file:
        if size == 0:
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ))


@contextmanager
def opened(root: Path, path: str, size: int) -> Iterator[BinaryIO]:
    """Open one file, after checking that it has the size that the manifest says."""
    file_path = inside(root, path)
    try:
        with file_path.open("rb") as file:
            found = os.fstat(file.fileno()).st_size
            if found != size:
                raise CoreFileError(
                    f"{path}: expected {size} bytes, found {found}",
                    hint="the file was cut short or replaced; copy or export the core again",
                )
            yield file
    except OSError as error:
        raise CoreFileError(f"{path}: cannot be read: {error.strerror}") from error


def is_storage(path: str) -> bool:
    """Whether a section holds tensors."""
    return path.startswith(f"{STORAGE_FOLDER}/")


def compare(path: str, expected: str, found: str) -> None:
    """Raise DigestMismatchError when a file's digest is not the manifest's."""
    if expected != found:
        raise DigestMismatchError(
            f"{path}: digest: expected {expected}, found {found}",
            hint="the file was changed or damaged after export; copy or export the core again",
        )
