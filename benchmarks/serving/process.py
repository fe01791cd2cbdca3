"""Servers as process groups: start, wait until they answer, watch their memory, end them."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import httpx

PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20
STOP_S = 20.0


class ServerError(RuntimeError):
    """A server that did not start or ended by itself."""


def free_port() -> int:
    """A loopback port that is free now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def tree(root: int) -> list[int]:
    """The process ``root`` and all its descendants, from /proc."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # The parent is the second field after the name, which may hold blanks itself.
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found = [root]
    for pid in found:
        found.extend(children.get(pid, ()))
    return found


def resident_mib(root: int) -> float:
    """Resident memory of a process tree. Pages that its processes share count in each."""
    total = 0
    for pid in tree(root):
        with contextlib.suppress(OSError):
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return total * PAGE_MIB


class Process:
    """One running server: a process group of its own, ended when the context ends."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.started = time.perf_counter()
        with log.open("wb") as output:
            self._popen = subprocess.Popen(
                command,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._log = log

    def __enter__(self) -> "Process":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Ask the server to end; kill what is left of its group."""
        self._popen.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(STOP_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait()

    def check(self) -> None:
        """Raise ServerError, with the end of its log, when the server has ended."""
        if self._popen.poll() is not None:
            tail = self._log.read_text(errors="replace").strip().splitlines()[-3:]
            raise ServerError(f"ended with code {self._popen.returncode}: {' | '.join(tail)}")

    async def ready(self, url: str, timeout_s: float) -> None:
        """Poll ``url`` until it answers 200. Raises ServerError."""
        end = time.perf_counter() + timeout_s
        async with httpx.AsyncClient(timeout=5, trust_env=False) as http:
            while time.perf_counter() < end:
                self.check()
                with contextlib.suppress(httpx.HTTPError):
                    if (await http.get(url)).status_code == 200:
                        return
                await asyncio.sleep(0.005)
        raise ServerError(f"not ready after {timeout_s:.0f} s")

    @contextlib.contextmanager
    def peak_memory(self, every_s: float = 0.1) -> "Iterator[Peak]":
        """Sample the tree's resident memory while the context lasts (needs a running loop)."""
        peak = Peak()
        task = asyncio.create_task(_sample(self._popen.pid, peak, every_s))
        try:
            yield peak
        finally:
            task.cancel()
            peak.see(resident_mib(self._popen.pid))


class Peak:
    """The largest value seen, in MiB."""

    def __init__(self) -> None:
        self.mib = 0.0

    def see(self, mib: float) -> None:
        """Take one sample."""
        self.mib = max(self.mib, mib)


async def _sample(pid: int, peak: Peak, every_s: float) -> None:
    while True:
        peak.see(resident_mib(pid))
        await asyncio.sleep(every_s)
