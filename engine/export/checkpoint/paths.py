"""Paths of a checkpoint directory: plain names that stay inside it."""

from pathlib import Path, PurePosixPath, PureWindowsPath

from engine.errors import CheckpointError


def inside(folder: Path, name: str) -> Path:
    """Return the file ``name`` of a checkpoint folder, resolved.

    A name taken from a file of the checkpoint must be a plain relative path, and the file that it
    leads to must lie inside the folder. One kind of link is followed out of it: a snapshot of the
    Hugging Face cache (``.../snapshots/REVISION``) keeps its bytes in ``.../blobs``.
    Raises CheckpointError; also when there is no such file.
    """
    pure = PurePosixPath(name)
    unsafe = (
        not name
        or "\0" in name
        or pure.is_absolute()
        or ".." in pure.parts
        or PureWindowsPath(name).drive
        or "\\" in name
    )
    if unsafe:
        raise CheckpointError(
            f"{folder}: {name!r} is not a plain relative name inside the checkpoint"
        )
    path = (folder / name).resolve()
    if not any(path.is_relative_to(root) for root in _roots(folder)):
        raise CheckpointError(
            f"{folder}: {name!r} leads out of the checkpoint, to {path}",
            "Copy the file into the folder if it belongs to the checkpoint.",
        )
    if not path.is_file():
        raise CheckpointError(f"{folder}: file {name!r} is missing")
    return path


def _roots(folder: Path) -> tuple[Path, ...]:
    root = folder.resolve()
    if root.parent.name == "snapshots":
        return root, root.parent.parent / "blobs"
    return (root,)
