"""The journal: what survives a kill, what is refused, and what is named."""

import json
from pathlib import Path

import pytest

from engine.errors import SettingsError
from engine.export.tuning.journal import Journal, journal_path
from engine.export.tuning.questions import Measurement

HEADER = {"source_digest": "a" * 64, "threads": 2, "max_model_len": 256, "created": 100}
FIRST = Measurement("linear/x/generated-1", {"k": [0.1, 0.2], "k@pieces=4": [0.3]})
SECOND = Measurement("step/decode-1", {"heuristic": [0.5]}, "reference+rows", {"k": "bits"})


def write(path: Path) -> bytes:
    with Journal(path, HEADER, resume=False) as journal:
        journal.add(FIRST)
        journal.add(SECOND)
    return path.read_bytes()


def test_it_lies_beside_the_output() -> None:
    assert journal_path(Path("/models/my.core")) == Path("/models/my.core.journal")


def test_answers_come_back_with_the_first_time_of_creation(tmp_path: Path) -> None:
    write(tmp_path / "j")
    with Journal(tmp_path / "j", {**HEADER, "created": 999}, resume=True) as journal:
        assert journal.found == {FIRST.key: FIRST, SECOND.key: SECOND}
        assert journal.created == 100


def test_resuming_without_a_journal_begins_one(tmp_path: Path) -> None:
    with Journal(tmp_path / "new" / "j", HEADER, resume=True) as journal:
        assert journal.found == {} and journal.created == 100
        journal.remove()
    assert not (tmp_path / "new" / "j").exists()


def test_whatever_byte_a_kill_came_at_whole_lines_count(tmp_path: Path) -> None:
    data = write(tmp_path / "j")
    ends = [i + 1 for i, byte in enumerate(data) if byte == 10]
    for length in range(len(data) + 1):
        path = tmp_path / "torn"
        path.write_bytes(data[:length])
        whole = sum(end <= length for end in ends)
        with Journal(path, {**HEADER, "created": 7}, resume=True) as journal:
            assert len(journal.found) == max(0, whole - 1)
            assert journal.created == (100 if whole else 7)
            for measurement in (FIRST, SECOND):
                if measurement.key not in journal.found:
                    journal.add(measurement)
        with Journal(path, HEADER, resume=True) as journal:
            assert journal.found == {FIRST.key: FIRST, SECOND.key: SECOND}


def test_a_journal_that_is_there_is_refused_without_resume(tmp_path: Path) -> None:
    data = write(tmp_path / "j")
    with pytest.raises(SettingsError, match="interrupted export") as caught:
        Journal(tmp_path / "j", HEADER, resume=False)
    assert "--resume" in (caught.value.hint or "")
    assert (tmp_path / "j").read_bytes() == data


def test_one_made_for_another_input_names_what_differs(tmp_path: Path) -> None:
    data = write(tmp_path / "j")
    other = {**HEADER, "threads": 4, "tuning": "audit"}
    with pytest.raises(SettingsError, match=r"threads: 2 there, now 4; tuning: absent there"):
        Journal(tmp_path / "j", other, resume=True)
    assert (tmp_path / "j").read_bytes() == data


def test_two_exports_cannot_share_one(tmp_path: Path) -> None:
    with (
        Journal(tmp_path / "j", HEADER, resume=False),
        pytest.raises(SettingsError, match="in use by another export"),
    ):
        Journal(tmp_path / "j", HEADER, resume=True)


@pytest.mark.parametrize(
    "line", ["not json", "[1]", '{"key": "a"}', '{"key": "a", "samples": [], "refused": {}}', ""]
)
def test_a_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    lines = write(tmp_path / "j").decode().splitlines()
    lines[1] = line
    (tmp_path / "j").write_text("\n".join(lines) + "\n")
    with pytest.raises(SettingsError, match="line 2 is damaged"):
        Journal(tmp_path / "j", HEADER, resume=True)


def test_another_version_is_another_export(tmp_path: Path) -> None:
    lines = write(tmp_path / "j").decode().splitlines()
    lines[0] = json.dumps({**json.loads(lines[0]), "journal": 9})
    (tmp_path / "j").write_text("\n".join(lines) + "\n")
    with pytest.raises(SettingsError, match="journal: 9 there, now 1"):
        Journal(tmp_path / "j", HEADER, resume=True)


def test_what_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match="cannot write"):
        Journal(tmp_path / "file" / "j", HEADER, resume=False)
