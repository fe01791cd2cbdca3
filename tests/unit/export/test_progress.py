"""Progress of an export: plain lines in a log, a bar in a terminal."""

import io
import subprocess
import sys
from pathlib import Path

from engine.export.progress import Bar, Lines, show_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_log_gets_one_plain_line_per_step_and_note() -> None:
    stream = io.StringIO()
    with show_progress(stream) as progress:
        assert isinstance(progress, Lines)
        progress.step("Packing weights", 3)
        for _ in range(3):
            progress.advance()
        progress.note("[bold] head: F32 becomes bf16")
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    assert lines[0].endswith("Packing weights")
    assert lines[1] == "note: [bold] head: F32 becomes bf16"
    assert "\x1b" not in stream.getvalue()


def test_a_terminal_gets_a_bar_that_ends_full() -> None:
    stream = Terminal()
    with show_progress(stream) as progress:
        assert isinstance(progress, Bar)
        progress.step("Packing weights", 3)
        for _ in range(3):
            progress.advance()
        progress.note("[bold] head")
    assert "Packing weights" in stream.getvalue() and "3/3" in stream.getvalue()
    assert "note: [bold] head" in stream.getvalue()


def test_export_loads_no_tensor_framework() -> None:
    code = (
        "import sys, engine.export.pipeline, engine.export.progress\n"
        "print(*{'torch', 'transformers', 'safetensors', 'gguf'} & sys.modules.keys())"
    )
    root = Path(__file__).parents[3]
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == ""
