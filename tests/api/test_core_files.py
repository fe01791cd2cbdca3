"""What a server does to its core's files, and what is done to them while it serves."""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from app import cli
from tests.support.checkpoints import complete_hf
from tests.support.process import ROOT, ServerProcess, flare, server_process

STORAGE = "rank0.safetensors"
LIMITS = ["--max-num-seqs", "4", "--max-step-tokens", "64", "--quantization", "int8"]
LONG = 200
ADMIN = {"authorization": "Bearer adm1n"}
BOUND = (
    "import ctypes, os, sys; "
    "assert os.geteuid() or not ctypes.CDLL(None).prctl(24, 1, 0, 0, 0); "
    "os.execv(sys.argv[1], sys.argv[1:])"
)
"""Run a command whom the modes of files bind, root or not: without CAP_DAC_OVERRIDE (prctl(2))."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    complete_hf(folder)
    return folder


@pytest.fixture(scope="module")
def original(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cores") / "one.core"
    assert cli.main(["export", str(model), "--output", str(path), *LIMITS]) == 0
    return path


@pytest.fixture
def core(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "one.core"))


def running(core: Path) -> list[str]:
    return flare("run", str(core), "--port", "0", "--kv-cache-memory", "32MiB")


def complete(url: str, tokens: int = LONG) -> str:
    body = {"model": "any", "prompt": "one two", "max_tokens": tokens, "temperature": 0}
    body["model"] = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
    answer = httpx.post(f"{url}/v1/completions", json={**body, "ignore_eos": True}, timeout=60)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


def stop(server: ServerProcess) -> None:
    server.process.send_signal(signal.SIGTERM)
    assert server.wait() == 0, server.stderr


def mapped(server: ServerProcess) -> dict[str, int]:
    """KiB of the storage's mapping, as /proc/PID/smaps has them (proc(5))."""
    text = Path(f"/proc/{server.process.pid}/smaps").read_text()
    fields: dict[str, int] = {}
    inside = False
    for line in text.splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            inside = line.endswith(STORAGE)
            assert not inside or line.split()[1] == "r--s"
        elif inside and (found := re.match(r"(\w+): +(\d+) kB", line)):
            fields[found[1]] = fields.get(found[1], 0) + int(found[2])
    return fields


@pytest.mark.model
def test_servers_of_one_core_share_its_pages(default_core: Path) -> None:
    with server_process(running(default_core)) as one, server_process(running(default_core)) as two:
        texts = {complete(server.ready(), 8) for server in (one, two)}
        assert len(texts) == 1
        parts = [mapped(server) for server in (one, two)]
        size = (default_core / "storage" / STORAGE).stat().st_size // 1024
        for part in parts:
            assert part["Rss"] > 0.98 * size
            assert part["Private_Dirty"] == part["Shared_Dirty"] == part["Anonymous"] == 0
        together = sum(part["Pss"] for part in parts)
        assert together < 1.02 * size  # once in memory, however many serve it
        stop(one)
        stop(two)


def bound(*command: str) -> list[str]:
    return [sys.executable, "-c", BOUND, *command]


def test_a_core_that_nobody_may_write_is_served(core: Path) -> None:
    paths = [core, *core.rglob("*")]
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        for target in (core / "core.json", core / "text" / "new"):
            writing = bound(sys.executable, "-c", f"open({str(target)!r}, 'r+' if 0 else 'a')")
            tried = subprocess.run(writing, check=False, capture_output=True, text=True)
            assert "PermissionError" in tried.stderr
        for command in ("inspect", "verify"):
            run = subprocess.run(
                bound(*flare(command, str(core))), check=False, cwd=ROOT, capture_output=True
            )
            assert run.returncode == 0, run.stderr
        with server_process(bound(*running(core))) as server:
            assert complete(server.ready())
            stop(server)
    finally:
        for path in paths:
            path.chmod(0o755)


def exported_again(core: Path, model: Path) -> None:
    command = ["export", str(model), "--output", str(core), "--overwrite", "--no-mixed-prefill"]
    assert cli.main([*command, *LIMITS]) == 0


def renamed_over(core: Path, model: Path) -> None:
    other = core.with_name("other.core")
    assert cli.main(["export", str(model), "--output", str(other), "--no-mixed-prefill"]) == 0
    core.rename(core.with_name("old.core"))
    other.rename(core)


def deleted(core: Path, _: Path) -> None:
    shutil.rmtree(core)


def files_replaced(core: Path, _: Path) -> None:
    """Other files under the same names, as a careful copy writes them."""
    for path in [path for path in core.rglob("*") if path.is_file()]:
        other = path.with_name("new")
        other.write_bytes(bytes(path.stat().st_size))
        other.rename(path)


@pytest.fixture
def answers(original: Path) -> Iterator[str]:
    with server_process(running(original)) as server:
        yield complete(server.ready())
        stop(server)


@pytest.mark.parametrize("change", [exported_again, renamed_over, deleted, files_replaced])
def test_a_server_goes_on_when_its_core_is_replaced(
    core: Path, model: Path, answers: str, change: Callable[[Path, Path], None]
) -> None:
    with server_process(running(core), {"FLARE_ADMIN_KEY": "adm1n"}) as server:
        url = server.ready()
        found: list[str] = []
        busy = [threading.Thread(target=lambda: found.append(complete(url))) for _ in range(3)]
        for thread in busy:
            thread.start()
        change(core, model)
        for thread in busy:
            thread.join()
        assert [*found, complete(url)] == [answers] * 4
        for mixed in (False, True):
            body = {"mixed_prefill": mixed}
            answer = httpx.post(f"{url}/v1/config", json=body, headers=ADMIN)
            assert answer.status_code == 200, answer.text
            assert answer.json()["graphs"]["family"] == ("mixed" if mixed else "separate")
            assert complete(url) == answers
        stop(server)


def test_export_never_writes_into_a_core_in_place(core: Path, model: Path) -> None:
    before = {path: path.stat().st_ino for path in core.rglob("*")}
    opened = [(path, os.open(path, os.O_RDONLY)) for path in before if path.is_file()]
    contents = [(descriptor, path.read_bytes()) for path, descriptor in opened]
    exported_again(core, model)
    for descriptor, data in contents:
        assert os.pread(descriptor, len(data) + 1, 0) == data
        os.close(descriptor)
    assert all(path.stat().st_ino != before[path] for path in before if path.exists())
