"""Opens a core read-only: decodes the manifest, maps the storage, checks sizes and digests."""

from collections.abc import Mapping
from pathlib import Path
from typing import Self

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from engine.core.codec import PROGRAMS, decode_manifest, decode_programs
from engine.core.digests import content_digest
from engine.core.errors import CoreFileError, LayoutMissingError
from engine.core.hashing import (
    LARGEST_MANIFEST,
    EarlyHashing,
    StorageHashing,
    compare,
    is_storage,
    opened,
    storage_hashing,
)
from engine.core.paths import MANIFEST, TEXT_FOLDER, inside
from engine.core.safetensors import NUMPY_DTYPES
from engine.core.schema import Manifest, Section
from engine.core.storage_header import check_header
from engine.core.validate_storage import validate_storage

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
        files: Mapping[str, bytes],
        hashing: StorageHashing,
    ) -> None:
        self.path = path
        self.manifest = manifest
        self._maps = hashing.maps
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
                compare(section.path, section.digest, found[section.path])

    def raise_if_damaged(self) -> None:
        """``verify_storage``, if that need not wait."""
        if self._hashing.done():
            self.verify_storage()

    def close(self) -> None:
        """Stop hashing. Views that were handed out stay valid."""
        self._hashing.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_core(path: Path, *, hash_storage: bool = True, early: EarlyHashing | None = None) -> Core:
    """Open the core at ``path``.

    Checks at once: the manifest's version, root digest and schema; that every listed file lies
    inside the core and has its size; the storage table, against the storage files' headers too;
    digests of programs and text files.
    Starts hashing the storage for ``Core.verify_storage``; without ``hash_storage`` that begins
    when it is called, for those who may need no tensor; ``early`` (``hash_early``) is gone on with
    when it is of this core. Files that the manifest does not list have
    no meaning and are ignored. Raises CoreError subclasses.
    """
    root = _root(path)
    manifest = decode_manifest(_manifest_bytes(root))
    validate_storage(manifest)
    sizes = {s.path: s.size for s in manifest.sections if is_storage(s.path)}
    hashing = storage_hashing(root, sizes, early)
    if hash_storage:
        hashing.begin()
    try:
        for name, data in hashing.maps.items():
            check_header(name, data, (t for t in manifest.catalog.storage if t.file == name))
        files = {
            section.path: _read(root, section)
            for section in manifest.sections
            if not is_storage(section.path)
        }
        programs = decode_programs(files[PROGRAMS])
    except BaseException:
        hashing.stop()
        raise
    catalog = replace(manifest.catalog, programs=programs)
    return Core(root, replace(manifest, catalog=catalog), files, hashing)


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


def _read(root: Path, section: Section) -> bytes:
    """Read one file whole and check its digest: what is checked is what is used."""
    with opened(root, section.path, section.size) as file:
        data = file.read(section.size)
    compare(section.path, section.digest, content_digest(data))
    return data
