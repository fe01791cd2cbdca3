"""The server as a process: start, ready line, signals, drain, exit codes."""

import json
import signal
import socket
import sys
import threading
import time
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import httpx
import pytest

from tests.support.process import ServerProcess, flare, server_process


def running(
    *arguments: str, load: float = 0, delay: float = 0, error: str = "-"
) -> AbstractContextManager[ServerProcess]:
    """``flare run`` with a scripted engine."""
    command = [sys.executable, "-m", "tests.support.run_scripted", str(load), str(delay), error]
    return server_process([*command, *arguments])


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
    """H51, in a process of its own."""
    with running(load=1.0) as server:
        url = server.url()
        assert httpx.get(f"{url}/health").status_code == 503
        assert httpx.get(f"{url}/live").status_code == 200
        refused = httpx.post(f"{url}/v1/chat/completions", json={})
        assert refused.status_code == 503 and refused.headers["retry-after"]
        server.ready()
        ready, attempt = server.lines(2)
        assert url in ready and "scripted" in ready
        assert attempt.startswith(f"try: curl {url}/v1/completions")  # it has no chat template
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 0


def test_sigterm_lets_running_streams_finish() -> None:
    """H52: and refuses new requests meanwhile."""
    with running("--drain-seconds", "20", delay=0.02) as server:
        url = server.ready()
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
    """H52: the drain limit."""
    with running("--drain-seconds", "0.5", delay=0.05) as server:
        url = server.ready()
        stream = Stream(url, 4000)
        stream.start()
        assert stream.started.wait(10)
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 0  # 4000 tokens would take 200 seconds
        stream.join(5)
        assert "error" in json.loads(stream.events[-1])


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_at_once(first: signal.Signals) -> None:
    """H52: no waiting for streams then."""
    with running("--drain-seconds", "60", delay=0.05) as server:
        url = server.ready()
        stream = Stream(url, 4000)
        stream.start()
        assert stream.started.wait(10)
        server.process.send_signal(first)
        while httpx.get(f"{url}/health").status_code == 200:
            time.sleep(0.01)
        server.process.send_signal(first)
        assert server.wait() == 130  # before the drain's 60 seconds are over


def test_ctrl_c_is_130_ready_or_loading() -> None:
    for load in (0.0, 60.0):
        with running(load=load) as server:
            url = server.url() if load else server.ready()
            assert httpx.get(f"{url}/live").status_code == 200
            server.process.send_signal(signal.SIGINT)
            assert server.wait() == 130
            assert "Traceback" not in server.stderr


def test_sigterm_while_loading_is_0() -> None:
    with running(load=60.0) as server:
        assert httpx.get(f"{server.url()}/live").status_code == 200
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 0
        assert "Traceback" not in server.stderr


@pytest.mark.model
@pytest.mark.usefixtures("default_gguf")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_signal_during_the_first_export_leaves_nothing_half_written(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    with server_process(flare("run", "--port", "0"), {"XDG_CACHE_HOME": str(tmp_path)}) as server:
        for _ in range(3000):
            if list(tmp_path.rglob("*.partial-*/storage/*")):
                break
            time.sleep(0.01)
        server.process.send_signal(number)
        assert server.wait(60) == code, server.stderr
        assert "Traceback" not in server.stderr
    assert [path.name for path in tmp_path.rglob("*.partial-*")] == []


@pytest.mark.parametrize(
    "variables",
    [{"FLARE_MIXED_PREFILL": "maybe"}, {"FLARE_MAX_QUEUE": "many"}, {"FLARE_PORT": "-1"}],
)
def test_a_bad_variable_is_a_line_that_names_it_a_hint_and_2(variables: dict[str, str]) -> None:
    with server_process(flare("run", "some.core"), variables) as server:
        assert server.wait() == 2
        (name,) = variables
        fault, hint = server.errors
        assert fault.startswith(f"flare: error: {name} must"), server.stderr
        assert hint.startswith("hint: ")


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
        server.ready()
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 0
        records = [json.loads(line) for line in server.errors]
        assert "ready" in {record["message"] for record in records}
        assert server.process.stdout is not None
        assert server.process.stdout.read() == ""
