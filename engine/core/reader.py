"""Opens a core read-only: decodes the manifest, maps the storage, checks sizes and digests."""

import mmap
import os
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Self

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from engine.core.codec import MANIFEST, PROGRAMS, decode_manifest, decode_programs
from engine.core.digests import combine, content_digest, piece_digest, pieces
from engine.core.errors import CoreFileError, DigestMismatchError, LayoutMissingError
from engine.core.paths import TEXT_FOLDER, inside
from engine.core.safetensors import NUMPY_DTYPES
from engine.core.schema import Manifest, Section
from engine.core.validate_storage import validate_storage
from engine.errors import CoreError

LARGEST_MANIFEST = 256 << 20
"""Bytes of the largest manifest that is read."""
_THREADS = 8
_HINT = (
    "pass the directory that flare export wrote; a model becomes one with "
    "flare export MODEL --output CORE"
)


class Core:
    """An open core. Nothing in it is ever written.

    manifest: decoded, its catalog with programs, not validated (see ``validate``). Storage is
    mapped shared and read-only; hashing it runs on threads of its own, so that it overlaps the rest
    of the start. ``verify_storage`` must return before
    anything computed from the tensors is used.
    """

    def __init__(
        self,
        path: Path,
        manifest: Manifest,
        maps: Mapping[str, memoryview],
        files: Mapping[str, bytes],
        hashing: "StorageHashing",
    ) -> None:
        self.path = path
        self.manifest = manifest
        self._maps = maps
        self._files = files
        self._tensors = {(t.rank, t.name): t for t in manifest.catalog.storage}
        self._hashing = hashing

    @property
    def digest(self) -> str:
        """The root digest: it covers every byte of the core."""
        return self.manifest.root_digest

    def tensor(self, name: str, rank: int = 0) -> NDArray[np.generic]:
        """Return a stored tensor as a read-only view of the mapped file (bfloat16 as uint16).

        Raises LayoutMissingError when the rank has no such tensor.
        """
        entry = self._tensors.get((rank, name))
        if entry is None:
            raise LayoutMissingError(f"storage: rank {rank} has no tensor {name!r}")
        data = self._maps[entry.file][entry.offset : entry.offset + entry.size]
        return np.frombuffer(data, NUMPY_DTYPES[entry.dtype]).reshape(entry.shape)

    def text_files(self) -> dict[str, bytes]:
        """Return the text files by their names in ``text/``: the bytes that were checked when the
        core was opened, whatever is in its folder by now."""
        prefix = f"{TEXT_FOLDER}/"
        return {
            path.removeprefix(prefix): data
            for path, data in self._files.items()
            if path.startswith(prefix)
        }

    def verify_storage(self) -> None:
        """Wait until every storage file is hashed. Raises DigestMismatchError naming the file."""
        found = self._hashing.result()
        for section in self.manifest.sections:
            if section.path in found:
                _compare(section, found[section.path])

    def close(self) -> None:
        """Stop hashing. Views that were handed out stay valid."""
        self._hashing.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class StorageHashing:
    """Hashes the storage files' pieces on threads of its own; ``stop`` ends them early."""

    def __init__(self, maps: Mapping[str, memoryview]) -> None:
        self._maps = maps
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
            for path, view in self._maps.items()
        }
        executor.shutdown(wait=False)
        self._executor = executor

    def _digest(self, piece: memoryview) -> bytes:
        return b"" if self._stopped.is_set() else piece_digest(piece)

    def result(self) -> dict[str, str]:
        if self._stopped.is_set():
            raise CoreError("the core was closed before its storage was verified")
        self.begin()
        return {
            path: combine(future.result() for future in futures)
            for path, futures in self._futures.items()
        }

    def stop(self) -> None:
        self._stopped.set()
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)


def open_core(path: Path, *, hash_storage: bool = True) -> Core:
    """Open the core at ``path``.

    Checks at once: the manifest's version, root digest and schema; that every listed file lies
    inside the core and has its size; the storage table; digests of programs and text files.
    Starts hashing the storage for ``Core.verify_storage``; without ``hash_storage`` that begins
    when it is called, for those who may need no tensor. Files that the manifest does not list have
    no meaning and are ignored. Raises CoreError subclasses.
    """
    root = _root(path)
    manifest = decode_manifest(_manifest_bytes(root))
    validate_storage(manifest)
    stored = [section for section in manifest.sections if _is_storage(section.path)]
    maps = {section.path: _map(root, section) for section in stored}
    hashing = StorageHashing(maps)
    if hash_storage:
        hashing.begin()
    try:
        files = {
            section.path: _read(root, section)
            for section in manifest.sections
            if not _is_storage(section.path)
        }
        programs = decode_programs(files[PROGRAMS])
    except BaseException:
        hashing.stop()
        raise
    catalog = replace(manifest.catalog, programs=programs)
    return Core(root, replace(manifest, catalog=catalog), maps, files, hashing)


def _root(path: Path) -> Path:
    try:
        root = path.resolve(strict=True)
        found = (root / MANIFEST).exists()
    except FileNotFoundError as error:
        raise CoreFileError(
            f"{path}: cannot open the core: no such file or directory", hint=_HINT
        ) from error
    except (OSError, ValueError, RuntimeError) as error:
        raise CoreFileError(f"{path}: cannot open the core: {error}") from error
    if root.is_file():
        raise CoreFileError(f"{path}: expected the directory of a core, found a file", hint=_HINT)
    if not found:
        raise CoreFileError(
            f"{path}: expected the directory of a core, found no {MANIFEST} in it", hint=_HINT
        )
    return root


def _manifest_bytes(root: Path) -> bytes:
    file = inside(root, MANIFEST)
    try:
        size = file.stat().st_size
        if size > LARGEST_MANIFEST:
            raise CoreFileError(
                f"{MANIFEST}: expected at most {LARGEST_MANIFEST} bytes, found {size}"
            )
        return file.read_bytes()
    except OSError as error:
        raise CoreFileError(f"{MANIFEST}: cannot be read: {error.strerror}") from error


def _map(root: Path, section: Section) -> memoryview:
    """Map one file read-only."""
    with _opened(root, section) as file:
        if section.size == 0:
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), section.size, access=mmap.ACCESS_READ))


def _read(root: Path, section: Section) -> bytes:
    """Read one file whole and check its digest: what is checked is what is used."""
    with _opened(root, section) as file:
        data = file.read(section.size)
    _compare(section, content_digest(data))
    return data


@contextmanager
def _opened(root: Path, section: Section) -> Iterator[BinaryIO]:
    """Open one file, after checking that it has the size that the manifest says."""
    path = inside(root, section.path)
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != section.size:
                raise CoreFileError(
                    f"{section.path}: expected {section.size} bytes, found {size}",
                    hint="the file was cut short or replaced; copy or export the core again",
                )
            yield file
    except OSError as error:
        raise CoreFileError(f"{section.path}: cannot be read: {error.strerror}") from error


def _is_storage(path: str) -> bool:
    return path.startswith("storage/")


def _compare(section: Section, found: str) -> None:
    if section.digest != found:
        raise DigestMismatchError(
            f"{section.path}: digest: expected {section.digest}, found {found}",
            hint="the file was changed or damaged after export; copy or export the core again",
        )
