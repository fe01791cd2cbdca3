"""Log formats: one line of text or one JSON object per record, on standard error."""

import json
import logging
import sys
import time
from typing import Literal, TextIO

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""Attributes that every record has; what else is there was given as ``extra``."""


def configure_logging(
    level: str, style: Literal["text", "json"], stream: TextIO | None = None
) -> None:
    """Send Flare's and uvicorn's records at ``level`` and above to ``stream``.

    Other libraries speak from warnings upwards.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("flare").setLevel(level.upper())
    logging.getLogger("engine").setLevel(level.upper())
    logging.getLogger("app").setLevel(level.upper())
    logging.getLogger("uvicorn").setLevel("INFO" if level == "debug" else "WARNING")


class TextFormatter(logging.Formatter):
    """``2026-01-31 12:00:00.123 INFO flare.server message key=value``."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        line = f"{stamp}.{int(record.msecs):03d} {record.levelname} {record.name} "
        line += record.getMessage()
        line += "".join(f" {name}={value}" for name, value in _extra(record).items())
        line = line.encode("utf-8", "backslashreplace").decode("utf-8")
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object per line; the time is RFC 3339 in UTC."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        entry: dict[str, object] = {
            "time": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_extra(record),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def _extra(record: logging.LogRecord) -> dict[str, object]:
    return {
        name: value
        for name, value in vars(record).items()
        if name not in _STANDARD and name != "color_message"
    }
