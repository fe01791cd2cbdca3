"""A server as a process: start it, find its address, wait for it, read what it said."""

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parents[2]


class ServerProcess:
    """A process under test; standard error is collected as it comes.

    FLARE_ variables of the machine do not reach it; ``environment`` is added.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("FLARE_")}
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**kept, **environment},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.errors: list[str] = []
        self._reader = threading.Thread(target=self._collect, daemon=True)
        self._reader.start()

    @property
    def stderr(self) -> str:
        return "".join(self.errors)

    def url(self) -> str:
        """The address from the log, printed before loading ends."""
        for _ in range(2000):
            for line in self.errors:
                if found := re.search(r"listening on (\S+),", line):
                    return found[1]
            time.sleep(0.01)
        raise AssertionError(self.stderr)

    def ready(self) -> str:
        """The address, once /health is 200."""
        url = self.url()
        for _ in range(2000):
            if self.process.poll() is not None:
                break
            if httpx.get(f"{url}/health").status_code == 200:
                return url
            time.sleep(0.01)
        raise AssertionError(self.stderr)

    def lines(self, count: int) -> list[str]:
        """The next lines of standard output."""
        assert self.process.stdout is not None
        return [self.process.stdout.readline() for _ in range(count)]

    def wait(self, seconds: float = 30) -> int:
        """The exit code, when the process has ended by itself."""
        code = self.process.wait(seconds)
        self._reader.join(5)
        return code

    def end(self) -> None:
        """Kill it if it still runs, and close its pipes."""
        self.process.kill()
        self.process.wait()
        self._reader.join(5)
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()

    def _collect(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.errors.append(line)


@contextmanager
def server_process(
    command: Sequence[str], environment: Mapping[str, str] | None = None
) -> Iterator[ServerProcess]:
    process = ServerProcess(command, environment or {})
    try:
        yield process
    finally:
        process.end()


def flare(*arguments: str) -> list[str]:
    """The command line of ``flare ARGUMENTS``."""
    return [sys.executable, "-m", "app.cli", *arguments]
