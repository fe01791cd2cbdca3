"""Log formats: every record is one line of text, or one JSON object, whatever it says."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from app.logging import configure_logging


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    levels = {n: logging.getLogger(n).level for n in ("flare", "engine", "app", "uvicorn")}
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, value in levels.items():
        logging.getLogger(name).setLevel(value)


def test_json_records() -> None:
    stream = io.StringIO()
    configure_logging("info", "json", stream)
    logger = logging.getLogger("flare.test")
    logger.info("hello \ud83d %s", "wörld", extra={"request_id": "r1"})
    try:
        raise ValueError("inner\nline")
    except ValueError:
        logger.exception("failed")
    logger.debug("not shown")
    logging.getLogger("other").info("not shown either")
    records = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [record["message"] for record in records] == ["hello \ud83d wörld", "failed"]
    assert records[0]["request_id"] == "r1" and records[0]["level"] == "info"
    assert "ValueError: inner" in records[1]["exception"]
    stream.getvalue().encode("utf-8")


def test_text_records() -> None:
    stream = io.StringIO()
    configure_logging("debug", "text", stream)
    logging.getLogger("flare.test").debug("hello \ud83d", extra={"seconds": 1.5})
    line = stream.getvalue()
    assert " DEBUG flare.test hello \\ud83d seconds=1.5\n" in line
    line.encode("utf-8")
