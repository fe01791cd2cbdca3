"""``flare run`` on an exported core, as a user starts it: selection, answers, exit codes."""

import hashlib
import json
import os
import shutil
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from app import cli
from engine.core.digests import content_digest, root_digest
from tests.support.checkpoints import complete_hf
from tests.support.process import flare, server_process

STORAGE = "storage/rank0.safetensors"
LIMITS = ["--max-num-seqs", "4", "--max-step-tokens", "64"]
PROMPTS = ["hello world", "a", "one two three four five six seven " * 6]


@dataclass(frozen=True, slots=True)
class Cores:
    mixed: Path
    separate: Path


@pytest.fixture(scope="module")
def cores(tmp_path_factory: pytest.TempPathFactory) -> Cores:
    folder = tmp_path_factory.mktemp("cores")
    complete_hf(folder / "model")
    made = Cores(folder / "mixed.core", folder / "separate.core")
    for path, flag in ((made.mixed, "--mixed-prefill"), (made.separate, "--no-mixed-prefill")):
        arguments = ["export", str(folder / "model"), "--output", str(path), *LIMITS]
        assert cli.main([*arguments, "--quantization", "int8", flag]) == 0
    return made


def digests(core: Path) -> dict[str, str]:
    files = (path for path in sorted(core.rglob("*")) if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@dataclass(frozen=True, slots=True)
class Outcome:
    config: dict[str, Any]
    texts: list[str]
    metrics: str
    maps: str


def serve(core: Path, *flags: str, **variables: str) -> Outcome:
    """Start, ask, stop with SIGTERM; the process must end with 0."""
    command = flare("run", str(core), "--port", "0", "--kv-cache-memory", "32MiB", *flags)
    with server_process(command, variables) as server:
        url = server.ready()
        config = httpx.get(f"{url}/v1/config").json()
        texts = [_complete(url, config["model"]["id"], prompt) for prompt in PROMPTS]
        metrics = httpx.get(f"{url}/metrics").text
        maps = Path(f"/proc/{server.process.pid}/maps").read_text()
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 0, server.stderr
        assert "leaked" not in server.stderr
    return Outcome(config, texts, metrics, maps)


def _complete(url: str, model: str, prompt: str) -> str:
    body = {"model": model, "prompt": prompt, "max_tokens": 12, "temperature": 0}
    answer = httpx.post(f"{url}/v1/completions", json={**body, "ignore_eos": True}, timeout=30)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


WAYS: list[tuple[tuple[str, ...], Mapping[str, str], bool | None]] = [
    ((), {}, None),
    ((), {"FLARE_MIXED_PREFILL": ""}, None),
    (("--mixed-prefill",), {}, True),
    (("--no-mixed-prefill",), {}, False),
    ((), {"FLARE_MIXED_PREFILL": "yes"}, True),
    ((), {"FLARE_MIXED_PREFILL": "0"}, False),
    (("--mixed-prefill",), {"FLARE_MIXED_PREFILL": "false"}, True),
]


def test_each_way_to_choose_serves_the_same_texts_from_the_same_bytes(cores: Cores) -> None:
    before = digests(cores.mixed)
    texts = set()
    for flags, variables, requested in WAYS:
        outcome = serve(cores.mixed, *flags, **variables)
        graphs = outcome.config["graphs"]
        mixed = requested is not False
        assert graphs["requested"] is requested
        assert graphs["family"] == ("mixed" if mixed else "separate")
        assert graphs["captured"]["mixed"] > 0
        assert (graphs["retained"]["mixed"] > 0) is mixed
        assert (graphs["pruned"]["mixed"] > 0) is not mixed
        for kind in ("prefill", "decode"):
            assert graphs["retained"][kind] == graphs["captured"][kind] > 0
        for rank in outcome.config["ranks"]:
            assert rank["family"] == graphs["family"]
            assert rank["retained"] == sum(graphs["retained"].values())
        assert ('kind="mixed"' in outcome.metrics.split("flare_step_duration")[0]) is mixed
        assert "torch" not in outcome.maps
        texts.add(tuple(outcome.texts))
    assert len(texts) == 1
    assert digests(cores.mixed) == before


def test_sigterm_in_the_middle_of_the_start_is_0(cores: Cores) -> None:
    with server_process(flare("run", str(cores.mixed), "--port", "0")) as server:
        server.url()
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 0, server.stderr
        assert "Traceback" not in server.stderr and "leaked" not in server.stderr


def test_a_core_without_mixed_graphs(cores: Cores) -> None:
    config = serve(cores.separate).config
    assert (config["graphs"]["requested"], config["graphs"]["family"]) == (None, "separate")
    command = flare("run", str(cores.separate), "--port", "0", "--mixed-prefill")
    with server_process(command) as server:
        assert server.wait() == 4
        assert server.stderr.count("flare: error: ") == 1
        assert "Traceback" not in server.stderr


def test_a_mixed_graph_over_the_limits_is_named(cores: Cores) -> None:
    graphs = serve(cores.mixed, "--max-step-tokens", "32").config["graphs"]
    assert graphs["ineligible"]
    assert all(entry["id"].startswith("mixed-") for entry in graphs["ineligible"])
    assert all(entry["reason"] for entry in graphs["ineligible"])


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (("--max-model-len", "100000"), 2),
        (("--max-num-seqs", "5"), 2),
        (("--tensor-parallel-size", "2"), 2),
        (("--speculative", "mtp"), 2),
        (("--draft-tokens", "2"), 2),
        (("--speculative", "ngram", "--draft-tokens", "4"), 4),
        (("--device", "cuda"), 4),
        (("--kv-cache-memory", "1KiB"), 5),
    ],
)
def test_settings_that_the_core_cannot_serve(
    cores: Cores, flags: tuple[str, ...], code: int
) -> None:
    with server_process(flare("run", str(cores.mixed), "--port", "0", *flags)) as server:
        assert server.wait() == code, server.stderr
        assert server.stderr.count("flare: error: ") == 1 and "Traceback" not in server.stderr


def flipped_weight(core: Path) -> None:
    data = bytearray((core / STORAGE).read_bytes())
    data[-100] ^= 1
    (core / STORAGE).write_bytes(data)


def truncated_storage(core: Path) -> None:
    os.truncate(core / STORAGE, (core / STORAGE).stat().st_size // 2)


def missing_tokenizer(core: Path) -> None:
    (core / "text" / "tokenizer.json").unlink()


def edited(core: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    """Change the manifest and sign it again: only its meaning is wrong."""
    values = json.loads((core / "core.json").read_text())
    edit(values)
    values["root_digest"] = root_digest(values)
    (core / "core.json").write_text(json.dumps(values))


def other_version(core: Path) -> None:
    edited(core, lambda values: values.update(format_version=3))


def other_family(core: Path) -> None:
    edited(core, lambda values: values["graphs"][0].update(family="mixed", kind="decode"))


def absent_kernel(core: Path) -> None:
    edited(core, lambda values: values["graphs"][0]["kernels"].append("cpu.nonesuch"))


def no_decode_graphs(core: Path) -> None:
    def edit(values: dict[str, Any]) -> None:
        values["graphs"] = [g for g in values["graphs"] if g["kind"] != "decode"]

    edited(core, edit)


def broken_tokenizer(core: Path) -> None:
    """Damaged before it was sealed: digests are right."""
    data = b'{"version": "1.0"'
    (core / "text" / "tokenizer.json").write_bytes(data)

    def edit(values: dict[str, Any]) -> None:
        section = next(s for s in values["sections"] if s["path"].endswith("tokenizer.json"))
        section.update(size=len(data), digest=content_digest(data))

    edited(core, edit)


def no_manifest(core: Path) -> None:
    (core / "core.json").unlink()


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (flipped_weight, STORAGE),
        (truncated_storage, STORAGE),
        (missing_tokenizer, "tokenizer.json"),
        (broken_tokenizer, "tokenizer.json"),
        (other_version, "format_version"),
        (other_family, "family"),
        (absent_kernel, "cpu.nonesuch"),
        (no_decode_graphs, "decode"),
        (no_manifest, "core.json"),
    ],
)
def test_a_core_that_is_not_sound_is_3_and_one_line(
    cores: Cores, tmp_path: Path, damage: Callable[[Path], None], named: str
) -> None:
    core = tmp_path / "damaged.core"
    shutil.copytree(cores.mixed, core)
    damage(core)
    with server_process(flare("run", str(core), "--port", "0")) as server:
        assert server.wait() == 3, server.stderr
        (line,) = [line for line in server.errors if line.startswith("flare: error: ")]
        assert named in line
        assert "Traceback" not in server.stderr
    if damage is not broken_tokenizer:  # its digests are right
        assert cli.main(["verify", str(core)]) == 3
