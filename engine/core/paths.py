"""Where things lie in a core, and the check that a manifest's path stays inside it."""

import re
import stat
from pathlib import Path, PurePosixPath

from engine.core.errors import CoreFileError

MANIFEST = "core.json"
STORAGE_FOLDER = "storage"
TEXT_FOLDER = "text"
_PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*")
_LONGEST = 255


def storage_path(rank: int) -> str:
    """Return the path of a rank's tensors, relative to the core."""
    return f"{STORAGE_FOLDER}/rank{rank}.safetensors"


def inside(root: Path, path: str) -> Path:
    """Return ``root / path`` of a regular file. ``root`` is resolved already.

    Only plain relative names are taken (letters, digits, '.', '_', '-' and '/'; no component
    starts with a dot), and no component below ``root`` may be a symbolic link. Raises
    CoreFileError naming the path.
    """
    if len(path) > _LONGEST or not _PATH.fullmatch(path):
        raise CoreFileError(f"{path[:_LONGEST]!a}: expected a plain path inside the core")
    try:
        return _regular(root, path)
    except FileNotFoundError as error:
        raise CoreFileError(f"{path}: expected a file, found nothing at {root / path}") from error
    except OSError as error:
        raise CoreFileError(f"{path}: cannot be read: {error.strerror}") from error


def _regular(root: Path, path: str) -> Path:
    """Walk down from ``root`` without following a link."""
    full, mode = root, 0
    for part in PurePosixPath(path).parts:
        full = full / part
        mode = full.lstat().st_mode
        if stat.S_ISLNK(mode):
            raise CoreFileError(f"{path}: expected a file inside the core, found a symbolic link")
    if not stat.S_ISREG(mode):
        raise CoreFileError(f"{path}: expected a regular file, found something else")
    return full
