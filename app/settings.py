"""Settings of ``flare run``: flag > variable > .env > default, each value read strictly.

An empty value, wherever it stands, means the default and hides what stands below it.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from app import values
from app.config import ServerConfig
from engine.config import EngineConfig, Isa
from engine.types import Speculative

PREFIX = "FLARE_"

Flag = Annotated[bool, BeforeValidator(values.flag)]
Count = Annotated[int, BeforeValidator(values.whole(1, 10**9))]
Port = Annotated[int, BeforeValidator(values.whole(0, 65535))]
Threads = Annotated[int, BeforeValidator(values.whole(1, 4096))]
Drafts = Annotated[int, BeforeValidator(values.whole(0, 64))]
Size = Annotated[int, BeforeValidator(values.size(1024))]
SizeOrNone = Annotated[int, BeforeValidator(values.size(0))]
Seconds = Annotated[float, BeforeValidator(values.seconds(0, 86400))]
Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(values.names)]
Origins = Annotated[tuple[str, ...], NoDecode, BeforeValidator(values.origins)]
Keys = Annotated[tuple[str, ...], NoDecode, BeforeValidator(values.keys)]
Key = Annotated[str, BeforeValidator(values.key)]
Word = BeforeValidator(values.word)
Device = Annotated[Literal["auto", "cpu", "cuda"], Word]
ToolParser = Annotated[
    Literal["auto", "none", "hermes", "llama3_json", "mistral", "pythonic"], Word
]
ReasoningParser = Annotated[Literal["auto", "none", "think", "mistral", "seed", "cohere"], Word]
LogLevel = Annotated[Literal["debug", "info", "warning", "error"], Word]
LogFormat = Annotated[Literal["text", "json"], Word]


def _setting(default: object, group: str, text: str, *, secret: bool = False) -> Any:
    """A field with its help text; ``group`` heads it in ``flare run --help``."""
    extra: dict[str, Any] = {"group": group}
    return Field(default, description=text, json_schema_extra=extra, repr=not secret)


class Settings(BaseSettings):
    """Every setting; its variable is ``FLARE_`` and the name in capitals."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_file=".env",
        env_file_encoding="utf-8",
        extra="ignore",
        frozen=True,
        validate_default=False,
    )

    core: Path | None = _setting(
        None, "core", "path of the core; unset: the default core in the cache"
    )
    mixed_prefill: Flag | None = _setting(
        None,
        "core",
        "serve prefill and decode rows in one launch; unset: what the core was exported to do",
    )
    device: Device = _setting("auto", "core", "auto (what the core targets), cpu or cuda")
    tensor_parallel_size: Count | None = _setting(
        None, "core", "ranks; must match the core; unset: from the core"
    )
    host: str = _setting("127.0.0.1", "server", "address to listen on; 0.0.0.0 for all")
    port: Port = _setting(8000, "server", "port to listen on; 0 picks a free one and prints it")
    served_model_name: Names = _setting(
        (), "server", "comma-separated model names, the first is shown; unset: from the core"
    )
    drain_seconds: Seconds = _setting(
        30.0, "server", "how long running requests may go on after SIGTERM"
    )
    ping_seconds: Seconds = _setting(
        15.0, "server", "silence after which a stream gets a comment line; 0: never"
    )
    tool_parser: ToolParser = _setting(
        "auto",
        "server",
        "form of tool calls: auto (what the chat template asks for), none, hermes, llama3_json, "
        "mistral or pythonic",
    )
    reasoning_parser: ReasoningParser = _setting(
        "auto",
        "server",
        "marks of reasoning: auto (those of the chat template), none, think, mistral, seed or "
        "cohere",
    )
    max_num_seqs: Count | None = _setting(
        None, "limits", "sequences that run at once; only downwards; unset: from the core"
    )
    max_model_len: Count | None = _setting(
        None, "limits", "longest prompt plus completion; only downwards; unset: from the core"
    )
    max_step_tokens: Count | None = _setting(
        None, "limits", "tokens of one engine step; only downwards; unset: from the core"
    )
    max_queue: Count = _setting(1024, "limits", "waiting requests; a full queue answers 429")
    max_body_bytes: Size = _setting(
        10 * 1024 * 1024, "limits", "largest request body, in bytes or as 10MiB; above it: 413"
    )
    response_store: SizeOrNone = _setting(
        64 * 1024 * 1024,
        "limits",
        "memory for responses that can be read again and continued, in bytes or as 64MiB; 0: none",
    )
    kv_cache_memory: Size | None = _setting(
        None, "engine", "KV cache in bytes or as 2GiB; unset: sized from free memory"
    )
    threads: Threads | None = _setting(
        None, "engine", "CPU compute threads; unset: the physical cores"
    )
    cpu_isa: Annotated[Isa, Word] = _setting(
        "auto", "engine", "CPU instruction set: auto, portable, avx2, avx512, amx or neon"
    )
    stall_seconds: Seconds = _setting(
        0.08,
        "engine",
        "about how long a step that takes prompts in may hold up running streams; 0: any time",
    )
    prefix_cache: Flag = _setting(True, "engine", "reuse the KV blocks of shared prompt prefixes")
    speculative: Annotated[Speculative, Word] = _setting(
        "off", "engine", "speculative decoding: off or ngram (drafts from the text so far)"
    )
    draft_tokens: Drafts = _setting(0, "engine", "draft tokens per sequence and step; 0: 4")
    api_keys: Keys = _setting(
        (), "access", "comma-separated bearer keys; unset: no key is asked for", secret=True
    )
    admin_key: Key | None = _setting(
        None, "access", "bearer key of POST /v1/config; unset: that route answers 403", secret=True
    )
    live_switch: Flag = _setting(
        True,
        "access",
        "let POST /v1/config change the graph selection while serving; without an admin key it "
        "is off",
    )
    cors_origins: Origins = _setting(
        (), "access", "comma-separated origins that browsers may call from; unset: none"
    )
    log_level: LogLevel = _setting("info", "logs", "debug, info, warning or error")
    log_format: LogFormat = _setting("text", "logs", "text or json")

    @model_validator(mode="before")
    @classmethod
    def _empty_is_default(cls, data: dict[str, Any]) -> dict[str, Any]:
        return {
            name: value
            for name, value in data.items()
            if not (isinstance(value, str) and not value.strip())
        }

    def engine_config(self, core: Path) -> EngineConfig:
        """What the engine is told; ``core`` is the resolved path."""
        return EngineConfig(
            core=core,
            mixed_prefill=self.mixed_prefill,
            device=self.device,
            tensor_parallel_size=self.tensor_parallel_size,
            max_num_seqs=self.max_num_seqs,
            max_model_len=self.max_model_len,
            max_step_tokens=self.max_step_tokens,
            kv_cache_bytes=self.kv_cache_memory,
            threads=self.threads,
            prefix_cache=self.prefix_cache,
            speculative=self.speculative,
            draft_tokens=self.draft_tokens,
            max_queue=self.max_queue,
            cpu_isa=self.cpu_isa,
            stall_seconds=self.stall_seconds,
            live_switch=self.live_switch and self.admin_key is not None,
        )

    def server_config(self) -> ServerConfig:
        """What the HTTP face is told."""
        return ServerConfig(
            served_model_names=self.served_model_name,
            api_keys=self.api_keys,
            admin_key=self.admin_key,
            cors_origins=self.cors_origins,
            max_body_bytes=self.max_body_bytes,
            drain_seconds=self.drain_seconds,
            ping_seconds=self.ping_seconds,
            response_store_bytes=self.response_store,
            tool_parser=self.tool_parser,
            reasoning_parser=self.reasoning_parser,
        )
