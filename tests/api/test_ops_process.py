"""The server as a process: start, ready line, signals, drain, exit codes."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).resolve().parents[2]


class Process:
    """A ``flare run`` under test; standard error is collected as it comes."""

    def __init__(self, *arguments: str, load: float = 0, delay: float = 0, error: str = "-"):
        command = [sys.executable, "-m", "tests.support.run_scripted", str(load), str(delay), error]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("FLARE_")}
        self.process = subprocess.Popen(
            [*command, *arguments],
            cwd=ROOT,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.errors: list[str] = []
        self._reader = threading.Thread(target=self._collect, daemon=True)
        self._reader.start()

    def _collect(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.errors.append(line)

    def url(self) -> str:
        """The address from the log, printed before loading ends."""
        for _ in range(1000):
            for line in self.errors:
                if found := re.search(r"listening on (\S+),", line):
                    return found[1]
            time.sleep(0.01)
        raise AssertionError("".join(self.errors))

    def wait(self, seconds: float = 15) -> int:
        code = self.process.wait(seconds)
        self._reader.join(5)
        return code

    @property
    def stderr(self) -> str:
        return "".join(self.errors)


@contextmanager
def running(
    *arguments: str, load: float = 0, delay: float = 0, error: str = "-"
) -> Iterator[Process]:
    process = Process(*arguments, load=load, delay=delay, error=error)
    try:
        yield process
    finally:
        process.process.kill()
        process.wait()
        assert process.process.stdout is not None
        assert process.process.stderr is not None
        process.process.stdout.close()
        process.process.stderr.close()


def until_ready(url: str) -> None:
    for _ in range(1000):
        if httpx.get(f"{url}/health").status_code == 200:
            return
        time.sleep(0.01)
    raise AssertionError("not ready")


class Stream(threading.Thread):
    """One streaming completion; ``text`` and ``error`` are what it got."""

    def __init__(self, url: str, max_tokens: int) -> None:
        super().__init__(daemon=True)
        self.url, self.max_tokens = url, max_tokens
        self.started = threading.Event()
        self.events: list[str] = []

    def run(self) -> None:
        body: dict[str, object] = {"model": "scripted", "prompt": "abc", "stream": True}
        body |= {"max_tokens": self.max_tokens, "ignore_eos": True}
        with suppress(httpx.RemoteProtocolError):  # cut by a second signal
            self._read(body)

    def _read(self, body: dict[str, object]) -> None:
        with httpx.stream("POST", f"{self.url}/v1/completions", json=body, timeout=30) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    self.events.append(line.removeprefix("data: "))
                    self.started.set()


def test_probes_answer_while_loading_and_the_ready_line_comes_after() -> None:
    with running(load=1.0) as server:
        url = server.url()
        assert httpx.get(f"{url}/health").status_code == 503
        assert httpx.get(f"{url}/live").status_code == 200
        refused = httpx.post(f"{url}/v1/chat/completions", json={})
        assert refused.status_code == 503 and refused.headers["retry-after"]
        until_ready(url)
        assert server.process.stdout is not None
        ready, attempt = server.process.stdout.readline(), server.process.stdout.readline()
        assert url in ready and "scripted" in ready
        assert attempt.startswith(f"try: curl {url}/v1/chat/completions")
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 0


def test_sigterm_lets_running_streams_finish() -> None:
    with running("--drain-seconds", "20", delay=0.02) as server:
        url = server.url()
        until_ready(url)
        streams = [Stream(url, 60) for _ in range(3)]
        for stream in streams:
            stream.start()
        assert all(stream.started.wait(10) for stream in streams)
        server.process.send_signal(signal.SIGTERM)
        health = refused = 200
        for _ in range(100):
            health = httpx.get(f"{url}/health").status_code
            refused = httpx.post(f"{url}/v1/completions", json={}).status_code
            if health == 503:
                break
        assert (health, refused) == (503, 503)
        assert server.wait() == 0
        for stream in streams:
            stream.join(5)
            assert stream.events[-1] == "[DONE]"
            finishes = [json.loads(e)["choices"][0]["finish_reason"] for e in stream.events[:-1]]
            assert finishes[-1] == "length"


def test_past_the_drain_limit_streams_get_an_error_event() -> None:
    with running("--drain-seconds", "0.5", delay=0.05) as server:
        url = server.url()
        until_ready(url)
        stream = Stream(url, 4000)
        stream.start()
        assert stream.started.wait(10)
        started = time.perf_counter()
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 0
        assert time.perf_counter() - started < 6
        stream.join(5)
        assert "error" in json.loads(stream.events[-1])


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_at_once(first: signal.Signals) -> None:
    with running("--drain-seconds", "60", delay=0.05) as server:
        url = server.url()
        until_ready(url)
        stream = Stream(url, 4000)
        stream.start()
        assert stream.started.wait(10)
        server.process.send_signal(first)
        while httpx.get(f"{url}/health").status_code == 200:
            time.sleep(0.01)
        started = time.perf_counter()
        server.process.send_signal(first)
        assert server.wait() == 130
        assert time.perf_counter() - started < 1


def test_ctrl_c_is_130_ready_or_loading() -> None:
    for load in (0.0, 60.0):
        with running(load=load) as server:
            url = server.url()
            if not load:
                until_ready(url)
            assert httpx.get(f"{url}/live").status_code == 200
            server.process.send_signal(signal.SIGINT)
            assert server.wait() == 130
            assert "Traceback" not in server.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ("CoreError", 3),
        ("DeviceError", 5),
    ],
)
def test_a_failed_load_ends_with_its_code_and_one_line(error: str, code: int) -> None:
    with running(error=error) as server:
        assert server.wait() == code
        assert "flare: error: some.core does not load" in server.stderr
        assert "Traceback" not in server.stderr


def test_debug_shows_the_traceback() -> None:
    with running("--log-level", "debug", error="CoreError") as server:
        assert server.wait() == 3
        assert "Traceback" in server.stderr


def test_a_taken_port_is_one_line_and_2() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with running("--port", str(port)) as server:
            assert server.wait() == 2
            assert f"port {port} on 127.0.0.1 is in use" in server.stderr
            assert "Traceback" not in server.stderr


def test_json_logs_are_json_from_the_first_line_to_the_last() -> None:
    with running("--log-format", "json") as server:
        until_ready(server.url())
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 0
        records = [json.loads(line) for line in server.errors]
        assert "ready" in {record["message"] for record in records}
        assert server.process.stdout is not None
        assert server.process.stdout.read() == ""
