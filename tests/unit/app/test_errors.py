"""Every error leaves as OpenAI's JSON object with the right status."""

import json
from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from app.errors import ApiError, error_json, install_error_handlers, to_api_error
from app.protocol.body import RequestModel, read_body
from app.routing import Endpoint, make_routes
from engine.errors import ContextLengthError, EngineUnavailableError, QueueFullError, RequestError


class Body(RequestModel):
    prompt: str | list[str]
    temperature: float = 1.0


async def echo(request: Request) -> Response:
    return JSONResponse(str((await read_body(request, Body, {})).prompt))


async def boom(request: Request) -> Response:
    raise RuntimeError("secret detail")


async def queue(request: Request) -> Response:
    raise QueueFullError("The queue is full.")


def make_app() -> Starlette:
    endpoints = (
        Endpoint("POST", "/v1/echo", echo),
        Endpoint("GET", "/boom", boom),
        Endpoint("GET", "/queue", queue),
    )
    app = Starlette(routes=make_routes(endpoints))
    install_error_handlers(app)
    return app


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(make_app(), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://flare") as client:
        yield client


async def test_validation_names_the_field(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/echo", json={"prompt": ["a", 3]})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "prompt"
    assert error["type"] == "invalid_request_error"
    assert set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    "raw", [b"{", b"[]", b"3", b"\xff\xfe", b"[" * 100_000, b'{"prompt":' + b"1" * 5000 + b"}"]
)
async def test_broken_bodies_are_400(client: httpx.AsyncClient, raw: bytes) -> None:
    headers = {"content-type": "application/json"}
    answer = await client.post("/v1/echo", content=raw, headers=headers)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


async def test_nan_in_a_body_gives_valid_json(client: httpx.AsyncClient) -> None:
    raw = b'{"prompt": NaN, "temperature": Infinity}'
    headers = {"content-type": "application/json"}
    answer = await client.post("/v1/echo", content=raw, headers=headers)
    assert answer.status_code == 400
    json.loads(answer.text, parse_constant=lambda name: pytest.fail(f"{name} in an error body"))


async def test_unknown_url_and_method(client: httpx.AsyncClient) -> None:
    missing = await client.get("/v1/nothing")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "unknown_url")
    wrong = await client.get("/v1/echo")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
    assert wrong.json()["error"]["code"] == "method_not_allowed"


async def test_unforeseen_errors_stay_private(
    client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await client.get("/boom")
    assert answer.status_code == 500
    assert "secret" not in answer.text and "RuntimeError" not in answer.text
    assert answer.json()["error"]["type"] == "server_error"
    assert "secret detail" in caplog.text


async def test_full_queue_is_429_with_retry_after(client: httpx.AsyncClient) -> None:
    answer = await client.get("/queue")
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
    assert answer.json()["error"]["code"] == "queue_full"


@pytest.mark.parametrize(
    ("exc", "status", "code"),
    [
        (ContextLengthError("too long"), 400, "context_length_exceeded"),
        (EngineUnavailableError("loading"), 503, "engine_unavailable"),
        (RequestError("no"), 400, None),
        (ValueError("inner"), 500, None),
    ],
)
def test_engine_errors_map(exc: Exception, status: int, code: str | None) -> None:
    error = to_api_error(exc)
    assert (error.status, error.code) == (status, code)
    assert ("retry-after" in error.headers) == (status == 503)


def test_lone_surrogates_leave_as_valid_unicode() -> None:
    text = error_json(ApiError(400, "bad \ud83d text", param="\udc00"))
    parsed = json.loads(text)["error"]
    parsed["message"].encode("utf-8")
    assert parsed["param"] == "?"
