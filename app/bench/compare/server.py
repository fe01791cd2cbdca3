"""One server of one leg: a ``flare run`` of its own, and what it says of its start."""

import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from msgspec import Struct
from prometheus_client.parser import text_string_to_metric_families

from app.bench.compare.legs import Leg
from app.bench.endpoint import Endpoint
from app.bench.http import aiohttp, session
from engine.errors import (
    CoreError,
    DeviceError,
    FlareError,
    SelectionError,
    SettingsError,
)

START_SECONDS = 600.0
STOP_SECONDS = 40.0
POLL_SECONDS = 0.002
HEALTH_SECONDS = 5.0  # for an answer
PHASES = "flare_load_phase_seconds"
PACKAGE_ROOT = Path(__file__).resolve().parents[3]
HIDDEN = (
    "FLARE_CORE",
    "FLARE_MIXED_PREFILL",
    "FLARE_API_KEYS",
    "FLARE_ADMIN_KEY",
    "FLARE_SERVED_MODEL_NAME",
    "FLARE_LOG_LEVEL",
    "FLARE_LOG_FORMAT",
    "FLARE_HOST",
    "FLARE_PORT",
    "FLARE_CORS_ORIGINS",
)
"""Settings that would make the legs unlike, or the server unreadable: left at their defaults."""
ERRORS: Mapping[int, type[FlareError]] = {
    2: SettingsError,
    3: CoreError,
    4: SelectionError,
    5: DeviceError,
}


class Start(Struct, frozen=True):
    """A server that is ready. Bytes are of the whole process; None where /proc does not tell.

    ready_s: from starting the process to the first 200 of /health. phases: seconds of loading.
    held_bytes: workspace that no retained graph needs. graphs, scheduler: of /v1/config.
    """

    leg: str
    ready_s: float
    phases: dict[str, float]
    resident_bytes: int | None
    held_bytes: int
    graphs: dict[str, Any]
    scheduler: dict[str, Any]

    @property
    def load_s(self) -> float:
        """Seconds that loading took, without the start of the interpreter and the web stack."""
        return self.phases["total"]


class Server:
    """A running ``flare run``; ``url`` is its address. Ends with ``stop``."""

    def __init__(self, core: Path, leg: Leg, log: Path) -> None:
        self.leg = leg
        self.url = ""
        self._log = log
        self._began = time.perf_counter()
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command(core, leg),
                env=environment(leg),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches it by way of here
            )

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    async def ready(self) -> Start:
        """Wait until it serves. Raises the error that it ended with, DeviceError for a timeout."""
        while not self.url:
            self._check()
            found = re.search(r"listening on (\S+),", self._log.read_text(errors="replace"))
            self.url = found[1] if found else ""
            await asyncio.sleep(POLL_SECONDS)
        async with session(HEALTH_SECONDS) as http:
            while not await _healthy(http, self.url):
                self._check()
                await asyncio.sleep(POLL_SECONDS)
        ready = time.perf_counter() - self._began
        async with Endpoint(self.url) as endpoint:
            config = await endpoint.config()
            phases = load_phases(await endpoint.text("/metrics"))
        assert config is not None  # /health was 200
        workspace = config["graphs"]["workspace_bytes"]
        return Start(
            self.leg.name,
            ready,
            phases,
            self.memory("VmRSS"),
            workspace["reserved"] - workspace["retained"],
            config["graphs"],
            config["scheduler"],
        )

    def memory(self, field: str) -> int | None:
        """Bytes of a line of /proc/PID/status: VmRSS is resident now, VmHWM was at most."""
        try:
            status = Path(f"/proc/{self.pid}/status").read_text()
        except OSError:
            return None
        found = re.search(rf"^{field}:\s+(\d+) kB", status, re.MULTILINE)
        return 1024 * int(found[1]) if found else None

    def stop(self) -> None:
        """End it; kill it when it does not end, or when the wait is interrupted."""
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except BaseException as exc:
            self._process.kill()
            self._process.wait()
            if not isinstance(exc, subprocess.TimeoutExpired):
                raise

    def _check(self) -> None:
        """Raise when it has ended, or has taken too long."""
        code = self._process.poll()
        if code is not None:
            raise ended(self.leg, code, self._log.read_text(errors="replace"))
        if time.perf_counter() - self._began > START_SECONDS:
            raise DeviceError(f"the {self.leg.name} server is not ready after {START_SECONDS:g} s")


@asynccontextmanager
async def serving(core: Path, leg: Leg) -> AsyncIterator[tuple[Server, Start]]:
    """A server while the context lasts. Raises as ``Server.ready``."""
    with tempfile.TemporaryDirectory(prefix="flare-compare-") as folder:
        server = Server(core, leg, Path(folder) / "log")
        try:
            yield server, await server.ready()
        finally:
            server.stop()


def command(core: Path, leg: Leg) -> list[str]:
    """The command line. -P: a folder "app" where the user stands is not this package."""
    run = [sys.executable, "-P", "-m", "app.bench.compare.child", str(os.getpid()), str(core)]
    return [*run, "--host", "127.0.0.1", "--port", "0", *leg.arguments]


def environment(leg: Leg) -> dict[str, str]:
    """This process's environment, with the settings that must not differ at their defaults.

    An empty value is the default, and hides what .env says.
    """
    paths = [str(PACKAGE_ROOT), os.environ.get("PYTHONPATH", "")]
    own = {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    return {**os.environ, **own, **dict.fromkeys(HIDDEN, ""), **dict(leg.variables)}


def load_phases(metrics: str) -> dict[str, float]:
    """Seconds of loading by phase, from the text of /metrics."""
    return {
        sample.labels["phase"]: sample.value
        for family in text_string_to_metric_families(metrics)
        for sample in family.samples
        if sample.name == PHASES
    }


def ended(leg: Leg, code: int, log: str) -> FlareError:
    """The error of a server that ended by itself: its own words, with its own exit code."""
    lines = log.strip().splitlines()
    kind = ERRORS.get(code, FlareError)
    said = _last(lines, "flare: error: ") or (lines[-1] if lines else "it said nothing")
    return kind(
        f"the {leg.name} server ended with code {code}: {said}", hint=_last(lines, "hint: ")
    )


def _last(lines: Sequence[str], start: str) -> str | None:
    found = [line.removeprefix(start) for line in lines if line.startswith(start)]
    return found[-1] if found else None


async def _healthy(http: aiohttp.ClientSession, url: str) -> bool:
    with suppress(aiohttp.ClientError, TimeoutError):
        async with http.get(f"{url}/health") as answer:
            return answer.status == 200
    return False
