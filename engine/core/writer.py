"""Writes a core: tensors stream to a temporary directory that is renamed when complete."""

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from engine.core.codec import PROGRAMS, decode_manifest, encode_manifest, encode_programs
from engine.core.digests import bytes_digest, content_digest, file_digest
from engine.core.errors import DuplicateIdError
from engine.core.paths import MANIFEST, TEXT_FOLDER, storage_path
from engine.core.safetensors import DTYPE_NAMES, NUMPY_DTYPES, TensorFile
from engine.core.schema import (
    FORMAT_VERSION,
    Canary,
    Catalog,
    Graph,
    Identity,
    Kernel,
    Limits,
    Machine,
    Manifest,
    ModelSpec,
    Section,
    StepTime,
    StorageTensor,
    TuningRecord,
)
from engine.core.validate import validate
from engine.errors import SettingsError
from engine.ir.program import Program

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})
"""Errors that only writing can meet."""
_TEXT_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


class CoreWriter:
    """Context manager that owns a partial core and turns it into ``output`` when finished.

    Everything is written into ``.<name>.partial-<pid>-*`` beside ``output``, so the last rename
    stays in one file system. Leaving the block without ``finish`` (an error, Ctrl-C) removes it.
    With ``overwrite`` an existing core is renamed aside and deleted only after the new one has
    its place; files that a running server has mapped stay readable to it.

    Raises SettingsError when ``output`` exists (without ``overwrite``, or is not a core) or
    cannot be written, also when the disk is full half way.
    """

    def __init__(self, output: Path, overwrite: bool = False) -> None:
        self._output = output.absolute()
        self._overwrite = overwrite
        self._partial: Path | None = None
        self._files: dict[int, TensorFile] = {}
        self._tensors: dict[tuple[int, str], StorageTensor] = {}
        self._sections: list[Section] = []
        _check_output(self._output, overwrite)

    def __enter__(self) -> Self:
        parent, name = self._output.parent, self._output.name
        try:
            parent.mkdir(parents=True, exist_ok=True)
            prefix = f".{name}.partial-{os.getpid()}-"
            self._partial = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
            self._partial.chmod(0o755)
            for folder in ("storage", TEXT_FOLDER):
                (self._partial / folder).mkdir()
        except OSError as error:
            self._discard()
            raise _cannot_write(self._output, error) from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._discard()
        if isinstance(error, OSError) and error.errno in _FULL:
            raise _cannot_write(self._output, error) from error

    def add_tensor(
        self,
        rank: int,
        name: str,
        weight: str,
        layout: str,
        array: NDArray[np.generic],
        n: int = 0,
        k: int = 0,
    ) -> StorageTensor:
        """Append one tensor to the rank's storage file and return its table entry.

        layout: "plain" or a packed layout, with the logical sizes n and k. Raises
        DuplicateIdError for a name that the rank already has, ValueError for a dtype that
        storage has no name for.
        """
        if (rank, name) in self._tensors:
            raise DuplicateIdError(f"storage: rank {rank} has two tensors named {name!r}")
        if array.dtype not in DTYPE_NAMES:
            raise ValueError(f"storage: tensor {name!r} has dtype {array.dtype}")
        file = self._files.get(rank)
        path = storage_path(rank)
        if file is None:
            file = self._files[rank] = TensorFile(self._folder / path)
        offset, data = file.append(name, array)
        dtype = DTYPE_NAMES[array.dtype]
        entry = StorageTensor(
            name, rank, weight, layout, dtype, array.shape, n, k, path, offset, len(data),
            bytes_digest(data),
        )  # fmt: skip
        self._tensors[rank, name] = entry
        return entry

    def map_tensors(self, rank: int) -> dict[str, NDArray[np.generic]]:
        """Map the tensors that the rank has so far, read-only; they are gone after ``finish``."""
        file = self._files.get(rank)
        if file is None:
            return {}
        file.flush()
        raw = np.memmap(file.path, np.uint8, "r")
        return {
            tensor.name: np.asarray(raw[tensor.offset : tensor.offset + tensor.size])
            .view(NUMPY_DTYPES[tensor.dtype])
            .reshape(tensor.shape)
            for tensor in self._tensors.values()
            if tensor.rank == rank
        }

    def add_text(self, name: str, data: bytes) -> None:
        """Add the file ``text/<name>``. Raises ValueError for a name that is not plain."""
        if not _TEXT_NAME.fullmatch(name):
            raise ValueError(f"text file name {name!r}: letters, digits, '.', '_' and '-' only")
        self._add_file(f"{TEXT_FOLDER}/{name}", data)

    def finish(
        self,
        identity: Identity,
        model: ModelSpec,
        limits: Limits,
        default_mixed: bool,
        graphs: Sequence[Graph],
        kernels: Sequence[Kernel],
        tuning: Sequence[TuningRecord],
        programs: Mapping[str, Program],
        machines: Sequence[Machine] = (),
        step_times: Sequence[StepTime] = (),
        canaries: Sequence[Canary] = (),
    ) -> Path:
        """Write programs and manifest, validate the whole, and rename it to ``output``.

        Raises what ``engine.core.validate.validate`` raises: an exporter's fault never becomes
        a core. Returns the core's path.
        """
        storage, moved = self._close_storage()
        self._add_file(PROGRAMS, encode_programs(programs))
        catalog = Catalog(
            tuple(graphs),
            tuple(kernels),
            tuple(tuning),
            storage,
            dict(programs),
            tuple(machines),
            tuple(step_times),
            tuple(canaries),
        )
        sections = tuple(self._sections) + moved
        manifest = Manifest(
            FORMAT_VERSION, identity, model, limits, default_mixed, catalog, sections, ""
        )
        data = encode_manifest(manifest)
        validate(decode_manifest(data, dict(programs)))
        _write(self._folder / MANIFEST, data)
        for folder in (self._folder / TEXT_FOLDER, self._folder / "storage", self._folder):
            _sync_folder(folder)
        self._publish()
        return self._output

    @property
    def _folder(self) -> Path:
        if self._partial is None:
            raise ValueError("the writer is closed")
        return self._partial

    def _add_file(self, path: str, data: bytes) -> None:
        if any(section.path == path for section in self._sections):
            raise DuplicateIdError(f"sections: {path} was added twice")
        _write(self._folder / path, data)
        self._sections.append(Section(path, len(data), content_digest(data)))

    def _close_storage(self) -> tuple[tuple[StorageTensor, ...], tuple[Section, ...]]:
        """Complete the tensor files. Returns the table, offsets final, and their sections."""
        shifts = {rank: file.close() for rank, file in self._files.items()}
        table = tuple(
            replace(tensor, offset=tensor.offset + shifts[tensor.rank])
            for tensor in self._tensors.values()
        )
        sections = []
        for file in self._files.values():
            path = file.path
            relative = path.relative_to(self._folder).as_posix()
            sections.append(Section(relative, path.stat().st_size, file_digest(path)))
        return table, tuple(sections)

    def _publish(self) -> None:
        """Rename the partial core to its name; on failure the former one is put back."""
        _check_output(self._output, self._overwrite)
        aside = self._folder.with_name(self._folder.name.replace(".partial-", ".old-", 1))
        try:
            if self._output.exists():
                self._output.rename(aside)
            self._folder.rename(self._output)
        except BaseException as error:
            if aside.exists() and not self._output.exists():
                aside.rename(self._output)
            shutil.rmtree(aside, ignore_errors=True)
            if isinstance(error, OSError):
                raise _cannot_write(self._output, error) from error
            raise
        self._partial = None
        _sync_folder(self._output.parent)
        shutil.rmtree(aside, ignore_errors=True)

    def _discard(self) -> None:
        for file in self._files.values():
            file.abandon()
        if self._partial is not None:
            shutil.rmtree(self._partial, ignore_errors=True)
            self._partial = None


def _check_output(output: Path, overwrite: bool) -> None:
    if not os.path.lexists(output):
        return
    if not overwrite:
        raise SettingsError(f"{output} exists", hint="pass --overwrite to replace it")
    is_core = (output / MANIFEST).is_file() and not output.is_symlink()
    if not is_core and not (output.is_dir() and not any(output.iterdir())):
        raise SettingsError(f"{output} is not a core and is not replaced")


def _write(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _cannot_write(output: Path, error: OSError) -> SettingsError:
    hint = "give --output a path in a folder that can be written and has room for the core"
    return SettingsError(f"cannot write {output}: {error.strerror}", hint)
