"""The playground: what it is made of, over HTTP, and how it behaves, in a browser if there is one.

``FLARE_TEST_SCREENSHOTS`` names a folder for pictures of the page.
"""

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from app.config import ServerConfig
from tests.support.application import application
from tests.support.browser import Page, browser_page, chromium
from tests.support.process import flare, server_process

FILES = {"/": "text/html", "/playground.css": "text/css", "/playground.js": "text/javascript"}
KEY = "k3y"


@pytest.mark.parametrize(("path", "kind"), FILES.items())
async def test_the_page_is_there_without_a_key(path: str, kind: str) -> None:
    async with application(ServerConfig(api_keys=("k",))) as built:
        answer = await built.http.get(path)
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith(kind)
        assert answer.headers["x-content-type-options"] == "nosniff"
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'") and "unsafe" not in policy
        known = {"if-none-match": answer.headers["etag"]}
        again = await built.http.get(path, headers=known)
        assert (again.status_code, again.content) == (304, b"")
        assert (await built.http.head(path)).content == b""
        assert (await built.http.get("/v1/models")).status_code == 401


@pytest.mark.parametrize("path", FILES)
async def test_it_refers_to_nothing_outside(path: str) -> None:
    async with application() as built:
        text = (await built.http.get(path)).text
        addresses = re.findall(r"\w+:?//[\w.]+|url\([^)]*\)|@import", text)
        assert set(addresses) <= {"http://www.w3.org"}  # the name space of SVG
        assert "innerHTML" not in text and "eval(" not in text
        if path == "/":
            assert not re.search(r"<script>|<style>|\son\w+=|\sstyle=", text)
            for name in re.findall(r'(?:src|href)="([^"]+)"', text):
                if not name.startswith("data:"):
                    assert (await built.http.get(f"/{name}")).status_code == 200, name


async def test_it_is_served_while_the_model_loads() -> None:
    async with application(loaded=False) as built:
        assert (await built.http.get("/")).status_code == 200
        assert (await built.http.get("/v1/config")).status_code == 503


@pytest.fixture
def page() -> Iterator[Page]:
    program = chromium()
    assert program is not None, "install Chromium, or leave these tests out: -m 'not browser'"
    with browser_page(program) as tab:
        yield tab


@pytest.fixture(scope="module")
def server(default_core: Path) -> Iterator[str]:
    """The default model behind a key; its address."""
    command = flare("run", str(default_core), "--port", "0", "--kv-cache-memory", "128MiB")
    with server_process(command, {"FLARE_API_KEYS": KEY}) as process:
        yield process.ready()


def picture(page: Page, name: str) -> None:
    folder = os.environ.get("FLARE_TEST_SCREENSHOTS")
    if folder:
        page.screenshot(Path(folder) / f"{name}.png")


def open_page(page: Page, server: str, key: str = KEY) -> None:
    """Open the playground and give it the key, as a person would."""
    page.call("Page.navigate", url=server + "/")
    page.until("document.readyState === 'complete' && !!document.getElementById('key')")
    page.until("document.getElementById('state').textContent === 'needs an API key'")
    page.run("document.getElementById('key').focus()")
    page.type(key)
    page.run("document.getElementById('key').blur()")


def ready(page: Page) -> None:
    page.until("document.getElementById('state').textContent === 'ready'")


def send(page: Page, text: str) -> None:
    page.run("document.getElementById('input').focus()")
    page.type(text)
    page.press("Enter", windowsVirtualKeyCode=13, text="\r")


ANSWER = "document.querySelector('article.assistant p')?.textContent"
NOTE = "document.querySelector('article.assistant small')?.textContent"


@pytest.mark.browser
def test_a_conversation_in_a_browser(page: Page, server: str) -> None:
    open_page(page, server)
    ready(page)
    assert page.run("document.getElementById('model').textContent").startswith("SmolLM2")
    assert "decode" in page.run("document.getElementById('engine').textContent")
    page.run("document.getElementById('max_tokens').value = 20")
    page.run("document.getElementById('temperature').value = 0")
    send(page, "Write a long story about the <b>sea</b>")
    assert "+ 20 tokens" in page.until(NOTE)
    assert page.run("document.querySelector('article.user p').textContent").endswith("<b>sea</b>")
    assert page.run("document.querySelectorAll('#log b').length") == 0
    assert page.run(f"{ANSWER}.length") > 0
    page.until("document.querySelectorAll('#charts .chart').length >= 4")
    page.until("document.querySelector('#charts polyline').getAttribute('points').includes(' ')")
    picture(page, "light")
    page.call(
        "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}]
    )
    picture(page, "dark")
    page.call(
        "Emulation.setDeviceMetricsOverride",
        width=390,
        height=844,
        deviceScaleFactor=2,
        mobile=True,
    )
    picture(page, "phone")
    assert page.run("document.documentElement.scrollWidth") <= 390
    assert all(url.startswith((server, "data:", "about:")) for url in page.requested())
    assert [text for text in page.complaints() if "401" not in text] == []  # before the key


@pytest.mark.browser
@pytest.mark.parametrize("way", ["button", "escape"])
def test_stop_ends_the_answer_and_the_request(page: Page, server: str, way: str) -> None:
    open_page(page, server)
    ready(page)
    page.run("document.getElementById('max_tokens').value = 1500")
    send(page, "Write a long story about the sea")
    page.until(f"({ANSWER})?.length > 3")
    assert running_requests(server) == 1
    if way == "button":
        page.run("document.getElementById('stop').click()")
    else:
        page.press("Escape", windowsVirtualKeyCode=27)
    page.until(f"({NOTE}) === 'stopped'")
    page.until("document.getElementById('stop').disabled")
    for _ in range(50):
        if running_requests(server) == 0:
            break
        time.sleep(0.02)
    assert running_requests(server) == 0


def running_requests(server: str) -> float:
    text = httpx.get(server + "/metrics", headers={"authorization": f"Bearer {KEY}"}).text
    return float(re.findall(r"^flare_requests_running (\S+)", text, re.MULTILINE)[0])


@pytest.mark.browser
def test_errors_are_shown_and_the_question_comes_back(page: Page, server: str) -> None:
    open_page(page, server)
    ready(page)
    page.run("document.getElementById('temperature').value = 7")
    send(page, "hello")
    message = page.until("document.getElementById('error').textContent")
    assert "temperature" in message
    assert page.run("document.getElementById('input').value") == "hello"
    assert page.run("document.querySelectorAll('article').length") == 0


@pytest.mark.browser
def test_a_wrong_key_is_said(page: Page, server: str) -> None:
    open_page(page, server, "wrong")
    page.until("document.getElementById('error').textContent.includes('Incorrect API key')")


async def test_the_files_are_small() -> None:
    async with application() as built:
        sizes = [len((await built.http.get(path)).content) for path in FILES]
        assert sum(sizes) < 40_000
