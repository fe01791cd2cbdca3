"""The command line: help, versions, exit codes, one line of error, each subcommand's own job."""

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from app import cli
from app.commands import default_core
from app.commands.run_options import make_parser
from app.settings import Settings
from engine import __version__
from engine.core.digests import root_digest
from engine.core.reader import open_core
from engine.errors import SelectionError, SettingsError
from tests.support.checkpoints import complete_hf
from tests.support.cores import CoreSpec, write_core

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLARE_LOG_LEVEL", raising=False)


def test_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"flare {project['version']}\n"
    assert __version__ == project["version"]
    assert project["scripts"]["flare"] == "app.cli:main"


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["--help"], ["-h"]):
        assert cli.main(arguments) == 0
        text = capsys.readouterr().out
        assert all(f"\n  {name} " in text for name in cli.COMMANDS)
        assert "examples:" in text


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_has_help_with_examples(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([name, "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert f"usage: flare {name}" in text and f"  flare {name} " in text


def test_run_has_an_option_for_every_setting() -> None:
    options = {option for action in make_parser()._actions for option in action.option_strings}
    expected = {f"--{name.replace('_', '-')}" for name in Settings.model_fields if name != "core"}
    flags = {"--no-mixed-prefill", "--no-prefix-cache", "--no-live-switch"}
    assert expected | flags | {"-h", "--help"} == options


@pytest.mark.parametrize(
    "arguments",
    [
        ["serve"],
        ["run", "--prot", "1"],
        ["run", "--port", "abc"],
        ["run", "--mixed-pref"],
        ["run", "a", "b"],
        ["inspect"],
        ["export", "smollm2"],
        ["export", "smollm2", "--output", "x", "--max-num-seqs", "-1"],
        ["export", "smollm2", "--output", "x", "--tuning", "slow"],
        ["export", "smollm2", "--output", "x", "--activations", "int4"],
        ["verify", "core", "--json"],
    ],
)
def test_usage_errors_are_2_with_one_line_and_a_hint(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 2
    errors = capsys.readouterr().err.splitlines()
    assert errors[0].startswith("flare: error: ")
    (hint,) = errors[1:]
    assert hint.startswith("hint: ")


def test_a_misspelt_option_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "--api-key=secret"]) == 2
    assert "did you mean --api-keys?" in capsys.readouterr().err


def test_a_missing_or_broken_core_is_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    core = write_core(tmp_path / "a.core")
    (core / "core.json").write_bytes(b"{")
    for path in (tmp_path / "missing.core", core):
        for command in ("inspect", "verify"):
            assert cli.main([command, str(path)]) == 3
            assert capsys.readouterr().err.startswith("flare: error: ")


def test_a_path_that_is_no_core_leads_to_export(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    for path in (tmp_path / "model.gguf", tmp_path / "missing", tmp_path):
        assert cli.main(["inspect", str(path)]) == 3
        assert "flare export MODEL" in capsys.readouterr().err


def test_report_shows_reasons_and_hint(capsys: pytest.CaptureFixture[str]) -> None:
    error = SelectionError("no mixed graph", {"mixed-64": "too large"}, "leave it out")
    assert cli.report(error) == 4
    assert capsys.readouterr().err == (
        "flare: error: no mixed graph\n  mixed-64: too large\nhint: leave it out\n"
    )


def test_unforeseen_errors_are_1_and_debug_shows_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def boom(arguments: list[str]) -> int:
        raise ZeroDivisionError("inner")

    monkeypatch.setattr(cli, "_dispatch", boom)
    assert cli.main([]) == 1
    assert "Traceback" not in capsys.readouterr().err
    monkeypatch.setenv("FLARE_LOG_LEVEL", "debug")
    assert cli.main([]) == 1
    assert "ZeroDivisionError: inner" in capsys.readouterr().err


def test_inspect_tells_what_a_selection_prunes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    core = str(write_core(tmp_path / "a.core"))
    assert cli.main(["inspect", core, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["selection"]["family"] == "mixed"
    assert cli.main(["inspect", core, "--no-mixed-prefill", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["selection"]["family"] == "separate"
    assert found["selection"]["pruned"]["mixed"] == 2
    assert cli.main(["inspect", core, "--no-mixed-prefill"]) == 0
    text = capsys.readouterr().out
    assert "mixed-32" in text and "pruned" in text and "family separate" in text
    assert cli.main(["inspect", core, "--program", "decode-1"]) == 0
    assert "= paged_attention(" in capsys.readouterr().out
    assert cli.main(["inspect", core, "--program", "decode-3"]) == 2


def test_names_in_a_core_reach_no_terminal_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    core = write_core(tmp_path / "a[bold].core")
    path = core / "core.json"
    values = json.loads(path.read_text())
    graph = values["graphs"][-1]
    old, graph["id"] = graph["id"], f"[/]{graph['id']}\x1b[2J"
    for record in values["tuning"]:
        if record["introduced_by"] == old:
            record["introduced_by"] = graph["id"]
    values["root_digest"] = root_digest(values)
    path.write_text(json.dumps(values))
    assert cli.main(["inspect", str(core)]) == 0
    shown = capsys.readouterr().out
    assert cli.main(["inspect", str(core), "--program", graph["id"]]) == 0
    shown += capsys.readouterr().out
    assert "[/]" in shown and "\\x1b[2J" in shown and "a[bold].core" in shown.replace("\n", "")
    assert all(line.isprintable() for line in shown.split("\n"))


def test_inspect_refuses_what_a_run_would_refuse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    core = write_core(tmp_path / "a.core", CoreSpec(mixed=(), default_mixed=False))
    assert cli.main(["inspect", str(core), "--mixed-prefill"]) == 4
    assert "mixed" in capsys.readouterr().err


def test_verify_names_its_checks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    core = write_core(tmp_path / "a.core")
    assert cli.main(["verify", str(core)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 4 and all(line.startswith("ok ") for line in lines[:-1])


def test_export_then_inspect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    complete_hf(tmp_path / "model")
    target = tmp_path / "tiny.core"
    arguments = ["export", str(tmp_path / "model"), "--output", str(target), "--max-num-seqs", "4"]
    arguments += ["--max-step-tokens", "32", "--no-mixed-prefill"]
    assert cli.main(arguments) == 0
    assert f"flare run {target}" in capsys.readouterr().out
    assert cli.main(["inspect", str(target), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["limits"]["max_num_seqs"] == 4
    assert found["selection"]["captured"]["mixed"] == 0
    assert cli.main(arguments) == 2  # it exists; --overwrite replaces it
    assert cli.main([*arguments, "--overwrite"]) == 0


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], "int12"),
        (["--activations", "int12"], "int12"),
        (["--activations", "bf16"], "bf16"),
        (["--activations", "int8"], "int8"),
    ],
)
def test_activations_decide_the_class_of_generated_rows(
    tmp_path: Path, options: list[str], expected: str
) -> None:
    complete_hf(tmp_path / "model")
    arguments = ["export", str(tmp_path / "model"), "--output", str(tmp_path / "tiny.core")]
    arguments += ["--quantization", "int4", "--max-num-seqs", "4", "--max-step-tokens", "32"]
    assert cli.main([*arguments, *options]) == 0
    with open_core(tmp_path / "tiny.core") as core:
        manifest = core.manifest
    assert manifest.identity.settings["activations"] == expected
    linears = [kernel for kernel in manifest.catalog.kernels if kernel.op == "linear"]
    assert {kernel.generated_class for kernel in linears} == {f"{expected}_g32"}
    assert {kernel.prompt_class for kernel in linears} == {"bf16_t32", f"{expected}_g32"}


def test_an_export_that_cannot_be_done_is_2_and_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, file = tmp_path / "model", tmp_path / "file"
    complete_hf(model, shard_bytes=60_000)
    file.write_text("")
    victim = sorted(model.glob("model-*.safetensors"))[1]
    cases = [(model, file / "x.core", "cannot write")]  # nobody can write below a file
    cases += [(tmp_path / "absent", tmp_path / "x.core", "absent")]
    cases += [(model, tmp_path / "x.core", victim.name)]
    victim.unlink()
    for source, output, named in cases:
        assert cli.main(["export", str(source), "--output", str(output)]) == 2
        errors = capsys.readouterr().err.splitlines()
        (line,) = [line for line in errors if line.startswith("flare: error: ")]
        assert named in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "model"]


def test_an_interrupted_export_is_130_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)

    complete_hf(tmp_path / "model")
    monkeypatch.setattr("engine.export.pipeline.stored_weight", interrupt)
    former = signal.getsignal(signal.SIGTERM)
    try:
        arguments = ["export", str(tmp_path / "model"), "--output", str(tmp_path / "x.core")]
        assert cli.main(arguments) == 130
    finally:
        signal.signal(signal.SIGTERM, former)
    assert capsys.readouterr().err.splitlines()[-1] == "flare: interrupted"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_default_core_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    expected = tmp_path / "flare" / "cores" / default_core.NAME
    assert default_core.default_core_path() == expected
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert default_core.default_core_path().parts[-4:] == (
        *(".cache", "flare", "cores"),
        default_core.NAME,
    )


def test_the_default_core_is_exported_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[str] = []

    def command(model: str, output: Path) -> list[str]:
        calls.append(model)
        return ["mkdir", str(output)]

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(default_core, "export_command", command)
    first = default_core.ensure_default_core()
    assert default_core.ensure_default_core() == first
    assert calls == ["smollm2"] and first.is_dir()


@pytest.mark.parametrize(("script", "expected"), [("exit 2", 2), ("exit 3", 3), ("kill -9 $$", 1)])
def test_a_failed_default_export_keeps_its_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, expected: int
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(default_core, "export_command", lambda *_: ["sh", "-c", script])
    with pytest.raises(SystemExit) as caught:
        default_core.ensure_default_core()
    assert caught.value.code == expected


def test_a_cache_that_cannot_be_written_is_a_settings_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "flare").write_text("a file where a folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(SettingsError, match="cannot write"):
        default_core.ensure_default_core()


def test_the_export_process_ignores_a_folder_named_app(tmp_path: Path) -> None:
    """The command that ``ensure_default_core`` runs, from where another ``app`` lies."""
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__init__.py").write_text("raise SystemExit(77)")
    command = default_core.export_command("smollm2", tmp_path / "x.core")
    shown = subprocess.run(
        [*command[: command.index("export")], "--version"],
        cwd=tmp_path,
        env=default_core.export_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (shown.returncode, shown.stdout) == (0, f"flare {__version__}\n")


@pytest.mark.parametrize(
    ("imports", "forbidden"),
    [
        # All that serving needs: torch and export belong to other lives.
        (
            "app.commands.run, app.main, app.server, engine.factory, engine.text.assets",
            "torch transformers rich openai gguf safetensors llguidance "
            "engine.export engine.models",
        ),
        # Before the engine begins to load: nothing that can be imported beside it.
        ("app.commands.run", "pydantic argparse starlette uvicorn numpy engine.core.schema"),
        (
            "app.commands.run, app.sources, app.commands.run_options",
            "starlette uvicorn numpy prometheus_client engine.core.schema",
        ),
        # Before a subcommand is known.
        ("app.cli", "pydantic asyncio argparse"),
    ],
)
def test_what_a_start_imports(imports: str, forbidden: str) -> None:
    program = (
        f"import sys, {imports};"
        f"bad = [m for m in {forbidden.split()} if m in sys.modules];"
        "sys.exit(', '.join(bad) or 0)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize("options", [("--port", "0"), ("--port", "0", "--no-mixed-prefill")])
def test_a_damaged_core_is_refused_before_anything_heavy_is_imported(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    core = write_core(tmp_path / "bad.core")
    storage = core / "storage" / "rank0.safetensors"
    data = bytearray(storage.read_bytes())
    data[-1] ^= 1
    storage.write_bytes(data)
    program = (
        f"import sys, app.cli; code = app.cli.main(['run', *{options!r}, {str(core)!r}]);"
        "print(*(m for m in ('numpy', 'uvicorn', 'starlette', 'jinja2') if m in sys.modules));"
        "sys.exit(code)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout) == (3, "\n"), ran.stderr
    assert "flare: error: storage/rank0.safetensors: digest: expected" in ran.stderr
