"""The journal of an export that measures: what an interrupted one need not measure again.

``CORE.journal`` beside the output is JSON Lines: a header that says what the measurements are of,
then one line per answered question, each synced to disk before the next question. A line counts
when it is whole, so an export may be killed at any moment; a torn last line is cut off.
"""

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from msgspec.structs import asdict

from engine.errors import SettingsError
from engine.export.tuning.questions import Measurement

VERSION = 1
CREATED = "created"
"""Key of the header that two exports of the same input may differ in."""
Header = Mapping[str, str | int | float | bool | None]


def journal_path(output: Path) -> Path:
    """Return where the journal of an export to ``output`` lies."""
    return output.with_name(f"{output.name}.journal")


class Journal:
    """Context manager over one journal, locked against other exports while it is open.

    header: what the measurements are of; ``created`` (Unix seconds) is that of the first attempt.
    Without ``resume`` a journal that is there is refused, with it one that was made for another
    input: SettingsError names what differs. Also raised when another export has it open, or when
    it cannot be written or read.
    """

    def __init__(self, path: Path, header: Header, resume: bool) -> None:
        self.path = path
        self.found: dict[str, Measurement] = {}
        self._file = _open(path, resume)
        try:
            self.header = self._read(dict(header))
        except BaseException:
            self._file.close()
            raise

    @property
    def created(self) -> int:
        """When the first attempt began, in Unix seconds."""
        return int(self.header[CREATED] or 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()

    def add(self, measurement: Measurement) -> None:
        """Append an answer; it is on disk when this returns."""
        self._append(asdict(measurement))
        self.found[measurement.key] = measurement

    def remove(self) -> None:
        """Delete the journal: the core is complete."""
        self.path.unlink(missing_ok=True)

    def _append(self, value: Mapping[str, Any]) -> None:
        try:
            self._file.write(json.dumps(value, allow_nan=False).encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise SettingsError(f"cannot write {self.path}: {error.strerror}") from error

    def _read(self, header: dict[str, Any]) -> dict[str, Any]:
        """Take over what is there, or begin. Returns the header in force."""
        data = self._file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._file.seek(len(whole))
        self._file.truncate()
        lines = whole.splitlines()
        wanted = {"journal": VERSION, **header}
        if not lines:
            self._append(wanted)
            return wanted
        stated = self._value(lines[0], 1)
        _check_header(self.path, stated, wanted)
        for number, line in enumerate(lines[1:], 2):
            measurement = self._measurement(line, number)
            self.found[measurement.key] = measurement
        return stated

    def _value(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            value = json.loads(line)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise self._damaged(number)
        return value

    def _measurement(self, line: bytes, number: int) -> Measurement:
        value = self._value(line, number)
        try:
            samples = {
                str(name): [float(seconds) for seconds in times]
                for name, times in value["samples"].items()
            }
            refused = {str(name): str(why) for name, why in value["refused"].items()}
            return Measurement(str(value["key"]), samples, value["checked"], refused)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise self._damaged(number) from None

    def _damaged(self, number: int) -> SettingsError:
        return SettingsError(
            f"{self.path}: line {number} is damaged",
            "delete the file and export again without --resume",
        )


def _open(path: Path, resume: bool) -> BinaryIO:
    if not resume and path.exists():
        raise SettingsError(
            f"{path} holds the measurements of an interrupted export",
            "pass --resume to go on with it, or delete the file to begin anew",
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b")
    except OSError as error:
        raise SettingsError(f"cannot write {path}: {error.strerror}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise SettingsError(f"{path} is in use by another export") from error
    return file


def _check_header(path: Path, stated: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    differ = [
        f"{name}: {_shown(stated, name)} there, now {_shown(wanted, name)}"
        for name in dict.fromkeys((*stated, *wanted))
        if name != CREATED and stated.get(name) != wanted.get(name)
    ]
    if differ or not isinstance(stated.get(CREATED), int):
        raise SettingsError(
            f"{path} was made for another export ({'; '.join(differ) or 'no time of creation'})",
            "export with the same input and settings, or delete the file to begin anew",
        )


def _shown(values: Mapping[str, Any], name: str) -> str:
    return json.dumps(values[name]) if name in values else "absent"
