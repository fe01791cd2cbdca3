"""Headless Chromium, driven through its debugging pipe: no driver, no port, no package."""

import base64
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless=new",
    "--no-sandbox",  # the tests may run as root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
)


def chromium() -> str | None:
    """The path of a Chromium, if there is one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One tab. The protocol: JSON messages ended by a zero byte, in on pipe 3 and out on pipe 4."""

    def __init__(self, write: int, read: int) -> None:
        self.events: list[dict[str, Any]] = []
        self._write, self._read = write, read
        self._ids = itertools.count(1)
        self._buffer = b""
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        """Run a command of the protocol; its result. Events that come meanwhile are kept."""
        number = next(self._ids)
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != number:
            self.events.append(answer)
        if "error" in answer:
            raise AssertionError(f"{method}: {answer['error']}")
        return answer["result"]

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression; promises are awaited."""
        result = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in result:
            raise AssertionError(result["exceptionDetails"])
        return result["result"].get("value")

    def until(self, condition: str, seconds: float = 20) -> Any:
        """Wait until an expression is true; its value."""
        end = time.monotonic() + seconds
        while not (value := self.run(condition)):
            if time.monotonic() > end:
                raise AssertionError(
                    f"never true: {condition}; {self.run('document.body.innerText')}"
                )
            time.sleep(0.05)
        return value

    def press(self, key: str, **more: Any) -> None:
        """Press and release a key, as a keyboard does."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, **more)

    def type(self, text: str) -> None:
        """Type into what has the focus."""
        self.call("Input.insertText", text=text)

    def screenshot(self, path: Path) -> None:
        """Save what the tab shows as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def complaints(self) -> list[str]:
        """Errors and warnings of scripts, of the network and of the content policy."""
        thrown = [e["params"] for e in self.events if e.get("method") == "Runtime.exceptionThrown"]
        logged = [e["params"] for e in self.events if e.get("method") == "Log.entryAdded"]
        loud = [entry for entry in logged if entry["entry"]["level"] in ("warning", "error")]
        return [json.dumps(entry) for entry in thrown + loud]

    def requested(self) -> list[str]:
        """The addresses that the tab asked for."""
        sent = [e for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return [e["params"]["request"]["url"] for e in sent]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            data = os.read(self._read, 1 << 16)
            if not data:
                raise AssertionError("the browser has ended")
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        parsed: dict[str, Any] = json.loads(message)
        return parsed


@contextmanager
def browser_page(program: str) -> Iterator[Page]:
    """A tab of a fresh browser with a profile of its own."""
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        # The shell puts the ends of the pipes where the browser looks for them.
        shell = f'exec "$@" 3<&{to_read} 4>&{from_write}'
        process = subprocess.Popen(
            ["bash", "-c", shell, "browser", program, *FLAGS, f"--user-data-dir={profile}"],
            pass_fds=(to_read, from_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(from_write)
        try:
            yield Page(to_write, from_read)
        finally:
            os.close(to_write)  # the end of its pipe ends the browser
            os.close(from_read)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
