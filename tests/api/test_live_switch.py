"""``POST /v1/config``: keys, bodies, refusals, the epoch, and a stream that goes on."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from app.config import ServerConfig
from engine.errors import DeviceError
from tests.support.application import Application, application

ADMIN = {"authorization": "Bearer adm1n"}
KEYED = ServerConfig(api_keys=("k3y",), admin_key="adm1n")


@pytest.fixture
async def built() -> AsyncIterator[Application]:
    async with application(KEYED, mixed=False) as built:
        yield built


async def post(built: Application, body: Any, headers: dict[str, str] = ADMIN) -> httpx.Response:
    return await built.http.post("/v1/config", json=body, headers=headers)


async def test_a_switch_answers_with_the_new_configuration(built: Application) -> None:
    wishes = ((True, "mixed"), (False, "separate"), (None, "mixed"), (None, "mixed"))
    for epoch, (wanted, family) in enumerate(wishes, 1):
        answer = await post(built, {"mixed_prefill": wanted})
        assert answer.status_code == 200
        graphs = answer.json()["graphs"]
        assert (graphs["requested"], graphs["family"], graphs["epoch"]) == (wanted, family, epoch)
        assert (graphs["retained"]["mixed"] > 0) is (family == "mixed")
        assert answer.json() == (await built.http.get("/v1/config", headers=ADMIN)).json()


async def test_keys(built: Application) -> None:
    body = {"mixed_prefill": True}
    for headers in ({}, {"authorization": "Bearer k3y"}, {"authorization": "Bearer adm1"}):
        answer = await post(built, body, headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
    described = (await built.http.get("/v1/config", headers=ADMIN)).json()
    assert described["graphs"]["epoch"] == 0


async def test_without_an_admin_key_it_is_forbidden() -> None:
    async with application() as built:
        answer = await post(built, {"mixed_prefill": True})
        assert answer.status_code == 403
        assert "FLARE_ADMIN_KEY" in answer.json()["error"]["message"]


async def test_no_live_switch_is_named() -> None:
    async with application(KEYED, live_switch=False) as built:
        answer = await post(built, {"mixed_prefill": True})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (403, "live_switch_off")
        assert "--no-live-switch" in error["message"]


@pytest.mark.parametrize(
    "body", [{}, {"mixed_prefill": "true"}, {"mixed_prefill": 1}, {"mixed_prefill": []}, [], None]
)
async def test_bodies_that_say_nothing_clear_are_refused(built: Application, body: Any) -> None:
    answer = await post(built, body)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"
    if isinstance(body, dict):
        assert answer.json()["error"]["param"] == "mixed_prefill"
    assert built.parts.engine.describe()["graphs"]["epoch"] == 0


async def test_a_selection_that_cannot_be_served_is_a_conflict() -> None:
    async with application(KEYED, mixed=False, captured_mixed=False) as built:
        before = built.parts.engine.describe()
        answer = await post(built, {"mixed_prefill": True})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (409, "selection_refused")
        assert error["param"] == "mixed_prefill"
        assert "exported without mixed graphs" in error["message"]
        assert built.parts.engine.describe() == before
        assert (await post(built, {"mixed_prefill": False})).status_code == 200


async def test_a_device_that_cannot_take_it_is_a_conflict(built: Application) -> None:
    built.parts.device.refuse = DeviceError("no memory left", hint="lower something")
    answer = await post(built, {"mixed_prefill": True})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (409, "device_failed")
    assert error["message"] == "no memory left (lower something)"
    assert built.parts.engine.describe()["graphs"]["epoch"] == 0


async def test_while_loading_it_is_unavailable() -> None:
    async with application(KEYED, loaded=False) as built:
        assert (await post(built, {"mixed_prefill": True})).status_code == 503


async def test_texts_are_the_same_across_switches(built: Application) -> None:
    async def text() -> str:
        body = {"model": "scripted", "prompt": "once", "max_tokens": 60, "temperature": 0}
        answer = await built.http.post("/v1/completions", json=body, headers=ADMIN)
        assert answer.status_code == 200
        return str(answer.json()["choices"][0]["text"])

    expected = await text()
    texts = [asyncio.create_task(text()) for _ in range(20)]
    for i in range(10):
        assert (await post(built, {"mixed_prefill": i % 2 == 0})).status_code == 200
    assert await asyncio.gather(*texts) == [expected] * 20
