"""Settings: precedence, strictness, forwarding; .env.example lists them all."""

import os
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from app.commands.run_options import make_parser
from app.config import ServerConfig
from app.settings import Settings
from app.sources import load_settings, unknown_variables
from engine.config import EngineConfig
from engine.errors import SettingsError

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No variable and no .env of the machine takes part."""
    for name in list(os.environ):
        if name.upper().startswith("FLARE_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    yield


def from_command(*arguments: str) -> Settings:
    return load_settings(vars(make_parser().parse_args(list(arguments))))


def test_defaults_are_the_contract() -> None:
    settings = from_command()
    assert settings.mixed_prefill is None
    assert (settings.host, settings.port) == ("127.0.0.1", 8000)
    assert (settings.max_queue, settings.drain_seconds) == (1024, 30.0)
    assert settings.max_body_bytes == 10 * 1024 * 1024
    assert settings.prefix_cache is True
    assert (settings.api_keys, settings.admin_key, settings.cors_origins) == ((), None, ())


def test_flag_beats_variable_beats_dotenv_beats_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert from_command().port == 8000
    Path(".env").write_text("FLARE_PORT=7001\nFLARE_MIXED_PREFILL=true\n")
    assert from_command().port == 7001
    monkeypatch.setenv("FLARE_PORT", "7002")
    monkeypatch.setenv("FLARE_MIXED_PREFILL", "0")
    assert from_command().port == 7002
    assert from_command().mixed_prefill is False
    assert from_command("--port", "7003", "--mixed-prefill").port == 7003
    assert from_command("--mixed-prefill").mixed_prefill is True


def test_an_empty_variable_is_the_default_and_hides_dotenv(monkeypatch: pytest.MonkeyPatch) -> None:
    """H56: empty is the default."""
    Path(".env").write_text("FLARE_MIXED_PREFILL=true\nFLARE_THREADS=3\n")
    monkeypatch.setenv("FLARE_MIXED_PREFILL", "")
    monkeypatch.setenv("FLARE_THREADS", " ")
    settings = from_command()
    assert settings.mixed_prefill is None and settings.threads is None


@pytest.mark.parametrize("name", ["mixed_prefill", "prefix_cache"])
@pytest.mark.parametrize(
    ("text", "expected"),
    [(word, False) for word in ("0", "false", "False", "no", "NO", "off")]
    + [(word, True) for word in ("1", "true", "TRUE", "yes", "on")],
)
def test_flag_words(monkeypatch: pytest.MonkeyPatch, name: str, text: str, expected: bool) -> None:
    """H56: words for on and off."""
    monkeypatch.setenv(f"FLARE_{name.upper()}", text)
    assert getattr(from_command(), name) is expected


@pytest.mark.parametrize("text", ["maybe", "2", "-1", "t", "y", "enable", "null", "None", "1.0"])
@pytest.mark.parametrize("name", ["FLARE_MIXED_PREFILL", "FLARE_PREFIX_CACHE"])
def test_other_words_are_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    """H56: no other word is either."""
    monkeypatch.setenv(name, text)
    with pytest.raises(SettingsError, match=f"{name}.*{re.escape(repr(text))}") as caught:
        from_command()
    assert caught.value.exit_code == 2


COUNTS = [
    "port",
    "threads",
    "max_num_seqs",
    "max_model_len",
    "max_step_tokens",
    "tensor_parallel_size",
    "max_queue",
    "max_body_bytes",
    "response_store",
    "kv_cache_memory",
    "draft_tokens",
    "drain_seconds",
    "ping_seconds",
]


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("text", ["abc", "-1", "1e9x", "0x10", "nan", "inf", "1_000", "9" * 30])
def test_bad_numbers_name_variable_and_flag(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    """H56, for numbers."""
    variable, option = f"FLARE_{name.upper()}", f"--{name.replace('_', '-')}"
    with pytest.raises(SettingsError, match=f"^{option} must be"):
        from_command(f"{option}={text}")
    monkeypatch.setenv(variable, text)
    with pytest.raises(SettingsError, match=f"^{variable} must be"):
        from_command()


@pytest.mark.parametrize("name", COUNTS)
def test_an_empty_number_is_the_default(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """H56, for numbers."""
    monkeypatch.setenv(f"FLARE_{name.upper()}", "")
    assert getattr(from_command(), name) == Settings.model_fields[name].default


@pytest.mark.parametrize(
    ("text", "size"),
    [("2GiB", 2 << 30), ("1048576", 1 << 20), ("1.5 MiB", 3 << 19), ("4gb", 4 * 10**9)],
)
def test_sizes(text: str, size: int) -> None:
    assert from_command("--kv-cache-memory", text).kv_cache_memory == size


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--device", "gpu"),
        ("--log-level", "loud"),
        ("--speculative", "eagle"),
        ("--api-keys", ","),
        ("--api-keys", "a b"),
        ("--admin-key", "a,b"),
        ("--served-model-name", ", ,"),
        ("--cors-origins", "example.org"),
        ("--cors-origins", "https://a.example/path"),
    ],
)
def test_bad_words_and_lists(option: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"^{option} must"):
        from_command(option, value)


def test_secrets_are_neither_shown_nor_quoted() -> None:
    settings = from_command("--api-keys", "s3cret,other", "--admin-key", "adm1n")
    assert settings.api_keys == ("s3cret", "other")
    for shown in (repr(settings), str(settings), repr(settings.server_config())):
        assert "s3cret" not in shown and "adm1n" not in shown
    with pytest.raises(SettingsError) as caught:
        from_command("--api-keys", "s3c ret")
    assert "s3c" not in str(caught.value)


def test_a_fault_in_dotenv_says_where_it_stands() -> None:
    Path(".env").write_text("FLARE_PORT=abc\n")
    with pytest.raises(SettingsError, match=r"^FLARE_PORT must") as caught:
        from_command()
    assert str(Path(".env").resolve()) in str(caught.value.hint)


def test_a_dotenv_that_is_not_text_is_a_settings_error() -> None:
    Path(".env").write_bytes(b"FLARE_PORT=\xff\xfe\n")
    with pytest.raises(SettingsError, match=r"\.env"):
        from_command()


def test_unknown_variables_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLARE_MIXED_PREFIL", "1")
    monkeypatch.setenv("FLARE_TEST_GGUF", "x")
    Path(".env").write_text("FLARE_PROT=1\nOTHER=2\nFLARE_PORT=1\n")
    assert unknown_variables() == [
        "FLARE_MIXED_PREFIL is not a setting; did you mean FLARE_MIXED_PREFILL?",
        "FLARE_PROT is not a setting; did you mean FLARE_PORT?",
    ]


ENGINE: dict[str, tuple[str, Any]] = {
    "mixed_prefill": ("false", False),
    "device": ("cpu", "cpu"),
    "tensor_parallel_size": ("1", 1),
    "max_num_seqs": ("7", 7),
    "max_model_len": ("512", 512),
    "max_step_tokens": ("96", 96),
    "kv_cache_memory": ("64MiB", 64 << 20),
    "threads": ("3", 3),
    "prefix_cache": ("off", False),
    "speculative": ("ngram", "ngram"),
    "stall_seconds": ("0.25", 0.25),
    "draft_tokens": ("4", 4),
    "max_queue": ("9", 9),
    "cpu_isa": ("avx2", "avx2"),
}
RENAMED = {"kv_cache_memory": "kv_cache_bytes"}


@pytest.mark.parametrize("way", ["variable", "flag"])
def test_every_engine_setting_arrives(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    arguments = []
    for name, (text, _) in ENGINE.items():
        option = name.replace("_", "-")
        if way == "variable":
            monkeypatch.setenv(f"FLARE_{name.upper()}", text)
        elif name in {"mixed_prefill", "prefix_cache"}:
            arguments.append(f"--no-{option}")
        else:
            arguments.append(f"--{option}={text}")
    config = from_command(*arguments).engine_config(Path("my.core"))
    for name, (_, value) in ENGINE.items():
        assert getattr(config, RENAMED.get(name, name)) == value
    known = {RENAMED.get(name, name) for name in ENGINE} | {"core", "live_switch"}
    assert known == set(EngineConfig.__struct_fields__)


@pytest.mark.parametrize(
    ("arguments", "on"),
    [
        ([], False),
        (["--live-switch"], False),
        (["--admin-key", "k"], True),
        (["--admin-key", "k", "--no-live-switch"], False),
    ],
)
def test_the_live_switch_needs_an_admin_key(arguments: list[str], on: bool) -> None:
    assert from_command(*arguments).engine_config(Path("x")).live_switch is on


def test_every_server_setting_arrives() -> None:
    config = from_command(
        "--api-keys=a,b",
        "--admin-key=adm",
        "--cors-origins=https://x.example, http://localhost:3000",
        "--served-model-name=m1,m2",
        "--drain-seconds=2.5",
        "--ping-seconds=0",
        "--max-body-bytes=2MiB",
        "--response-store=0",
        "--tool-parser=none",
        "--reasoning-parser=think",
    ).server_config()
    assert config == ServerConfig(
        served_model_names=("m1", "m2"),
        api_keys=("a", "b"),
        admin_key="adm",
        cors_origins=("https://x.example", "http://localhost:3000"),
        max_body_bytes=2 << 20,
        drain_seconds=2.5,
        ping_seconds=0.0,
        response_store_bytes=0,
        tool_parser="none",
        reasoning_parser="think",
    )


def test_env_example_lists_every_setting_with_default_and_meaning() -> None:
    lines = (ROOT / ".env.example").read_text().splitlines()
    entries = {}
    for before, line in pairwise(lines):
        if match := re.fullmatch(r"#(FLARE_[A-Z_]+)=(.*)", line):
            entries[match[1]] = (match[2], before.removeprefix("# "))
    assert set(entries) == {f"FLARE_{name.upper()}" for name in Settings.model_fields}
    for name, field in Settings.model_fields.items():
        text, meaning = entries[f"FLARE_{name.upper()}"]
        assert meaning == field.description
        assert getattr(load_settings({name: text}), name) == field.default


def test_env_example_is_a_valid_dotenv_when_uncommented() -> None:
    text = (ROOT / ".env.example").read_text()
    Path(".env").write_text(re.sub(r"^#(FLARE_)", r"\1", text, flags=re.M))
    assert load_settings({}) == Settings.model_construct()
    assert unknown_variables() == []
