"""What a server says of itself: its model, and where it is Flare its limits and counters."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

from app.bench.http import aiohttp, session
from engine.errors import SettingsError

TIMEOUT_S = 30.0
LAUNCHES, PADDED = "flare_graph_launches_total", "flare_padded_tokens_total"
PREEMPTIONS = "flare_preemptions_total"
HITS = "flare_prefix_cache_hits_total"
DURATIONS = "flare_step_duration_seconds_sum"


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters of a Flare server, or how much they grew. Launches, padding
    and seconds of steps are by kind."""

    launches: Mapping[str, float] = field(default_factory=dict)
    padded: Mapping[str, float] = field(default_factory=dict)
    preemptions: float = 0.0
    prefix_hits: float = 0.0
    durations: Mapping[str, float] = field(default_factory=dict)

    def since(self, before: "Counters") -> "Counters":
        """What was added since ``before``; kinds without growth are left out."""
        return Counters(
            _grown(self.launches, before.launches),
            _grown(self.padded, before.padded),
            self.preemptions - before.preemptions,
            self.prefix_hits - before.prefix_hits,
            _grown(self.durations, before.durations),
        )


class Endpoint:
    """Reads one server. ``base_url``: with or without /v1. Use as an async context manager.

    Raises SettingsError for a URL that is none.
    """

    def __init__(self, base_url: str, api_key: str | None = None) -> None:
        self.root = root_url(base_url)
        self._api_key = api_key

    async def __aenter__(self) -> "Endpoint":
        self._http = session(TIMEOUT_S, self._api_key)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    async def model(self) -> str:
        """The first model that is served. Raises SettingsError when there is no answer."""
        try:
            async with self._http.get(f"{self.root}/v1/models", raise_for_status=True) as answer:
                return str((await answer.json(content_type=None))["data"][0]["id"])
        except (aiohttp.ClientError, TimeoutError, ValueError, LookupError, TypeError) as exc:
            hint = "is the server running, and does it need --api-key?"
            raise SettingsError(
                f"{self.root}/v1/models does not list a model: {exc}", hint
            ) from exc

    async def config(self) -> dict[str, Any] | None:
        """``/v1/config`` of a Flare server; None for any other."""
        try:
            async with self._http.get(f"{self.root}/v1/config") as answer:
                found = await answer.json(content_type=None) if answer.status == 200 else None
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return None
        return found if isinstance(found, dict) and found.get("object") == "config" else None

    async def counters(self) -> Counters:
        """The counters of a Flare server now. Raises SettingsError when they cannot be read."""
        text = await self.text("/metrics")
        try:
            return counters(text)
        except ValueError as exc:
            raise SettingsError(f"cannot read {self.root}/metrics: {exc}") from exc

    async def text(self, path: str) -> str:
        """What a route answers. Raises SettingsError when it cannot be read."""
        try:
            async with self._http.get(f"{self.root}{path}", raise_for_status=True) as answer:
                return await answer.text()
        except (aiohttp.ClientError, TimeoutError) as exc:
            raise SettingsError(f"cannot read {self.root}{path}: {exc}") from exc


def counters(text: str) -> Counters:
    """The counters in the Prometheus text of a Flare server. Raises ValueError for other text."""
    launches: dict[str, float] = {}
    padded: dict[str, float] = {}
    durations: dict[str, float] = {}
    single = {PREEMPTIONS: 0.0, HITS: 0.0}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in (LAUNCHES, PADDED):
                into, kind = (
                    (launches if sample.name == LAUNCHES else padded),
                    sample.labels["kind"],
                )
                into[kind] = into.get(kind, 0.0) + sample.value
            elif sample.name == DURATIONS:
                durations[sample.labels["kind"]] = sample.value
            elif sample.name in single:
                single[sample.name] = sample.value
    return Counters(launches, padded, single[PREEMPTIONS], single[HITS], durations)


def root_url(base_url: str) -> str:
    """The URL without a trailing slash and /v1. Raises SettingsError for one that is none."""
    try:
        url = urlsplit(base_url)
        named = url.scheme in ("http", "https") and url.hostname and url.port != 0
    except ValueError as exc:
        raise SettingsError(f"--base-url {base_url!r} is no URL: {exc}") from exc
    if not named:
        raise SettingsError(f"--base-url must be http://HOST[:PORT] or https://, not {base_url!r}")
    return base_url.rstrip("/").removesuffix("/v1").rstrip("/")


def _grown(now: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    grown = {kind: value - before.get(kind, 0.0) for kind, value in now.items()}
    return {kind: value for kind, value in grown.items() if value}
