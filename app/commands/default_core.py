"""The default core: where it is kept, and its export when it is missing."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engine import __version__
from engine.errors import SettingsError

MODEL = "smollm2"
NAME = f"smollm2-135m-instruct-{__version__}.core"
"""Another version exports its own: a core's format and defaults may have changed."""
CLEANUP_SECONDS = 10
"""How long an export that is called off may take to remove what it wrote."""


def default_core_path() -> Path:
    """``$XDG_CACHE_HOME/flare/cores/...``; ``~/.cache`` when that is unset or not absolute."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    base = cache if cache.is_absolute() else Path.home() / ".cache"
    return base / "flare" / "cores" / NAME


def ensure_default_core() -> Path:
    """The default core's path, exported first when it is missing.

    The export runs in a process of its own, so that the server starts without what it imports
    and keeps none of its memory. Two starts at once export once: the other waits. Raises
    SystemExit with the export's exit code when it fails; it has told why itself.
    """
    path = default_core_path()
    if path.is_dir():
        return path
    with _lock(path):
        if not path.is_dir():
            _export(path)
    return path


def export_command(model: str, output: Path) -> list[str]:
    """The command of the export process.

    -P: a folder named "app" where the user stands must not be taken for this package.
    """
    export = ["export", model, "--output", str(output), "--tuning", "fast"]
    return [sys.executable, "-P", "-m", "app.cli", *export]


def export_environment() -> dict[str, str]:
    """Its environment: this one, with the folder that this package lies in on the path."""
    paths = [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def _export(path: Path) -> None:
    print(f"flare: exporting the default model to {path}", file=sys.stderr, flush=True)
    code = _run(export_command(MODEL, path))
    if code != 0:
        sys.exit(code if code > 0 else 1)


def _run(command: list[str]) -> int:
    """The exit code of a process that ends with this one.

    In a process group of its own, so that Ctrl-C reaches it once, by way of here: a second signal
    would cut its cleaning up short.
    """
    with subprocess.Popen(
        command, env=export_environment(), stdout=subprocess.DEVNULL, process_group=0
    ) as process:
        try:
            return process.wait()
        except BaseException:  # Ctrl-C or SIGTERM
            process.terminate()
            try:
                process.wait(CLEANUP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
            raise


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = (path.parent / f".{path.name}.lock").open("w")
    except OSError as exc:
        hint = "set XDG_CACHE_HOME to a folder that can be written, or give a CORE"
        raise SettingsError(f"cannot write to {path.parent}: {exc.strerror}", hint) from exc
    with handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
