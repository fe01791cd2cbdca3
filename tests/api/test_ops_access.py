"""Keys, CORS, request ids, body limits: what stands in front of every route."""

import asyncio
import http.client
import json
import socket
from collections.abc import AsyncIterator
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from app.auth import OPEN_PATHS
from app.config import ServerConfig
from tests.support.application import Application, application, served

KEY = "k3y"
ORIGIN = "https://chat.example.org"
COVERED = [
    ("GET", "/v1/models"),
    ("GET", "/v1/config"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/config"),
    ("POST", "/tokenize"),
    ("GET", "/metrics"),
    ("GET", "/docs"),
    ("GET", "/openapi.json"),
    ("GET", "/nothing"),
    ("GET", "//health"),
    ("GET", "/health/"),
]


@pytest.fixture
async def keyed() -> AsyncIterator[Application]:
    config = ServerConfig(
        api_keys=(KEY, "schlüssel"), admin_key="adm1n", cors_origins=(ORIGIN,), max_body_bytes=4096
    )
    async with application(config) as built:
        yield built


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (None, 401),
        (b"Bearer", 401),
        (b"Bearer ", 401),
        (b"Basic k3y", 401),
        (b"k3y", 401),
        (b"Bearer k3", 401),
        (b"Bearer k3yy", 401),
        (b"Bearer k3y,other", 401),
        (b"Bearer \xff\xfe", 401),
        ("Bearer пароль".encode(), 401),
        (b"Bearer k3y", 200),
        (b"bearer k3y", 200),
        (b"BEARER  k3y ", 200),
        ("Bearer schlüssel".encode(), 200),
        (b"Bearer adm1n", 200),
    ],
)
async def test_keys(keyed: Application, header: bytes | None, status: int) -> None:
    """H54: the scheme in any case, the key byte for byte."""
    headers = {} if header is None else {b"authorization": header}
    answer = await keyed.http.get("/v1/models", headers=headers)
    assert answer.status_code == status
    if status == 401:
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.json()["error"]["code"] == "invalid_api_key"
        assert "k3y" not in answer.text


@pytest.mark.parametrize(("method", "path"), COVERED)
async def test_every_route_but_the_probes_asks_for_a_key(
    keyed: Application, method: str, path: str
) -> None:
    """H54: all routes are covered."""
    assert (await keyed.http.request(method, f"http://flare{path}")).status_code == 401
    for probe in ("/health", "/live"):
        assert (await keyed.http.get(probe)).status_code == 200


async def test_no_route_was_forgotten(keyed: Application) -> None:
    paths = set(keyed.app.state.api.schema["paths"])
    assert {"/v1/embeddings", "/detokenize", "/health", "/live"} <= paths
    for path in paths:
        for method in ("GET", "POST", "HEAD", "OPTIONS"):
            answer = await keyed.http.request(method, path)
            refused = answer.status_code == 401
            assert refused is (path not in OPEN_PATHS), (method, path)


async def test_without_keys_everything_is_open() -> None:
    async with application() as built:
        assert (await built.http.get("/v1/models")).status_code == 200
        switch = await built.http.post("/v1/config", json={"mixed_prefill": True})
        assert switch.status_code == 403


async def test_preflight_needs_no_key(keyed: Application) -> None:
    """H57: browsers ask without one."""
    answer = await keyed.http.options(
        "/v1/chat/completions",
        headers={
            "origin": ORIGIN,
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,content-type",
        },
    )
    assert answer.status_code in (200, 204)
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    assert "authorization" in answer.headers["access-control-allow-headers"].lower()
    assert "POST" in answer.headers["access-control-allow-methods"]


async def test_errors_carry_cors_headers(
    keyed: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H57: whatever refuses a request, the browser may read why."""

    def headers(key: str = KEY) -> dict[str, str]:
        return {"origin": ORIGIN, "authorization": f"Bearer {key}"}

    def broken() -> dict[str, Any]:
        raise RuntimeError("inner")

    send = keyed.http.request
    answers = [
        (401, await send("POST", "/v1/chat/completions", headers=headers("wrong"), json={})),
        (400, await send("POST", "/v1/chat/completions", headers=headers(), json={})),
        (404, await send("GET", "/nothing", headers=headers())),
        (
            413,
            await send("POST", "/v1/completions", headers=headers(), json={"prompt": "x" * 5000}),
        ),
    ]
    monkeypatch.setattr(type(keyed.parts.engine), "describe", lambda engine: broken())
    answers.append((500, await send("GET", "/v1/config", headers=headers())))
    keyed.service.begin_drain()
    answers.append((503, await send("GET", "/v1/models", headers=headers())))
    for status, answer in answers:
        assert answer.status_code == status
        assert answer.headers["access-control-allow-origin"] == ORIGIN
        assert answer.json()["error"]["message"]


async def test_other_origins_and_the_default_get_nothing(keyed: Application) -> None:
    headers = {"origin": "https://evil.example", "authorization": f"Bearer {KEY}"}
    answer = await keyed.http.get("/v1/models", headers=headers)
    assert "access-control-allow-origin" not in answer.headers
    async with application() as plain:
        answer = await plain.http.get("/v1/models", headers={"origin": ORIGIN})
        assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_a_wildcard_never_comes_with_credentials() -> None:
    """H57: a page of another origin gets no further than anyone."""
    async with application(ServerConfig(cors_origins=("*",))) as built:
        answer = await built.http.get("/v1/models", headers={"origin": ORIGIN})
        assert answer.headers["access-control-allow-origin"] == "*"
        assert "access-control-allow-credentials" not in answer.headers


async def test_request_ids_are_echoed_or_new(keyed: Application) -> None:
    given = await keyed.http.get("/live", headers={"x-request-id": "abc-1"})
    assert given.headers["x-request-id"] == "abc-1"
    for bad in ("a b", "x" * 200, ""):
        answer = await keyed.http.get("/v1/models", headers={"x-request-id": bad})
        assert answer.headers["x-request-id"].startswith("req_")


async def test_a_body_over_the_limit_is_413_announced_or_not(keyed: Application) -> None:
    headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b" " * 100

    for content in (b" " * 4097, chunks()):
        answer = await keyed.http.post("/v1/completions", content=content, headers=headers)
        assert answer.status_code == 413
        assert "4096" in answer.json()["error"]["message"]
    fits = await keyed.http.post("/v1/completions", content=b" " * 4096, headers=headers)
    assert fits.status_code == 400


async def test_big_bodies_over_sockets_leave_the_server_alive() -> None:
    """64 MiB, with and without a length: 413 arrives, and /health answers meanwhile."""
    with served(ServerConfig(max_body_bytes=1 << 20)) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
            for chunked in (False, True):
                arguments = (server.url, 64 << 20, chunked)
                sending = asyncio.ensure_future(asyncio.to_thread(_send_big, *arguments))
                probes = 0
                while not sending.done():
                    assert (await client.get("/health")).status_code == 200
                    probes += 1
                assert await sending == 413
                assert probes >= 3
            assert (await client.get("/health")).status_code == 200


def _send_big(url: str, size: int, chunked: bool) -> int:
    """The status of a request whose body is sent to its end before the answer is read."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=30)
    block = b" " * (1 << 20)
    headers = {"content-type": "application/json"}
    if not chunked:
        headers["content-length"] = str(size)
    body = (block for _ in range(size >> 20))
    with closing(connection):
        connection.request("POST", "/v1/completions", body, headers, encode_chunked=chunked)
        answer = connection.getresponse()
        assert json.loads(answer.read())["error"]["type"] == "invalid_request_error"
        return answer.status


async def test_a_client_that_waits_for_100_continue_gets_its_413_at_once() -> None:
    with served(ServerConfig(max_body_bytes=1024)) as server:
        answer = await asyncio.to_thread(_expect_continue, server.url)
    assert b" 413 " in answer.split(b"\r\n", 1)[0]


def _expect_continue(url: str) -> bytes:
    parts = urlsplit(url)
    with socket.create_connection((str(parts.hostname), parts.port), timeout=5) as sock:
        sock.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: flare\r\nContent-Length: 99999\r\n"
            b"Content-Type: application/json\r\nExpect: 100-continue\r\n\r\n"
        )
        return sock.recv(4096)
