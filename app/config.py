"""The HTTP face's frozen configuration, resolved from the settings."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """What the application is told. Empty tuples mean: none, or what the core says.

    served_model_names: the first one is shown in answers. Limits are in bytes and seconds;
    ping_seconds 0 sends no keep-alive comments; response_store_bytes 0 keeps no responses.
    Parsers are named as in the settings.
    """

    served_model_names: tuple[str, ...] = ()
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    admin_key: str | None = field(default=None, repr=False)
    cors_origins: tuple[str, ...] = ()
    max_body_bytes: int = 10 * 1024 * 1024
    drain_seconds: float = 30.0
    ping_seconds: float = 15.0
    response_store_bytes: int = 64 * 1024 * 1024
    tool_parser: str = "auto"
    reasoning_parser: str = "auto"
