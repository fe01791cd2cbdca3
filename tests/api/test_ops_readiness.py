"""Probes and readiness: 503 with Retry-After until the engine serves, and after."""

import httpx
import pytest

from app.config import ServerConfig
from engine import __version__
from engine.errors import CoreError
from engine.types import EngineState
from tests.support.application import application, finish_loading

SERVING = [
    ("GET", "/v1/models"),
    ("GET", "/v1/models/scripted"),
    ("GET", "/v1/config"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/embeddings"),
    ("GET", "/v1/unknown"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
]


async def assert_unavailable(http: httpx.AsyncClient, state: str) -> None:
    health = await http.get("/health")
    assert (health.status_code, health.json()["status"]) == (503, state)
    assert int(health.headers["retry-after"]) >= 1
    for method, path in SERVING:
        answer = await http.request(method, path, json={})
        assert answer.status_code == 503, path
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.json()["error"]["code"] == "engine_unavailable"
    assert (await http.get("/live")).status_code == 200
    assert (await http.get("/metrics")).status_code == 200


async def test_loading_then_ready() -> None:
    """H51: 503 with Retry-After until the model can serve."""
    async with application(loaded=False) as built:
        await assert_unavailable(built.http, "loading")
        await finish_loading(built)
        assert (await built.http.get("/health")).json() == {"status": "ok"}
        models = await built.http.get("/v1/models")
        assert [model["id"] for model in models.json()["data"]] == ["scripted"]
        body = {"model": "scripted", "prompt": "hi", "max_tokens": 3, "ignore_eos": True}
        answer = await built.http.post("/v1/completions", json=body)
        assert answer.status_code == 200
        assert answer.json()["usage"]["completion_tokens"] == 3


async def test_a_failed_load_is_kept_for_the_exit_code() -> None:
    async with application(loaded=False) as built:
        built.source.set_exception(CoreError("core.json: version 9 is not readable"))
        await built.over.wait()
        assert built.service.state is EngineState.FAILED
        await assert_unavailable(built.http, "failed")
        assert isinstance(built.service.error, CoreError)


async def test_draining_refuses_new_work_and_health() -> None:
    """H52: nothing new is taken while draining."""
    async with application() as built:
        built.service.begin_drain()
        await assert_unavailable(built.http, "draining")


async def test_a_broken_engine_is_unavailable() -> None:
    async with application() as built:
        built.parts.device.fail = RuntimeError("device lost")
        body = {"model": "scripted", "prompt": "hi", "max_tokens": 2}
        answer = await built.http.post("/v1/completions", json=body)
        assert answer.status_code == 500
        assert "device lost" not in answer.text
        await assert_unavailable(built.http, "failed")


@pytest.mark.parametrize("names", [("gpt-x", "other/name"), ("one",)])
async def test_served_model_names(names: tuple[str, ...]) -> None:
    async with application(ServerConfig(served_model_names=names)) as built:
        listed = (await built.http.get("/v1/models")).json()
        assert [model["id"] for model in listed["data"]] == list(names)
        for name in names:
            one = (await built.http.get(f"/v1/models/{name}")).json()
            assert (one["id"], one["object"]) == (name, "model")
        missing = await built.http.get("/v1/models/scripted")
        assert missing.status_code == 404
        assert missing.json()["error"]["code"] == "model_not_found"


async def test_config_is_what_the_engine_says_of_itself() -> None:
    async with application() as built:
        config = (await built.http.get("/v1/config")).json()
        assert config == {**built.parts.engine.describe(), "version": __version__}


async def test_what_is_not_there_is_refused_by_name() -> None:
    async with application() as built:
        embeddings = await built.http.post("/v1/embeddings", json={"input": "x", "model": "m"})
        assert embeddings.status_code == 501
        assert "mbeddings" in embeddings.json()["error"]["message"]
        responses = await built.http.post("/v1/responses", json={"input": "x", "model": "m"})
        assert responses.status_code == 404
        assert responses.json()["error"]["type"] == "invalid_request_error"


async def test_docs_and_schema_are_there() -> None:
    async with application() as built:
        schema = (await built.http.get("/openapi.json")).json()
        chat = schema["paths"]["/v1/chat/completions"]["post"]
        assert chat["description"].startswith("Answer a conversation")
        fields = chat["requestBody"]["content"]["application/json"]["schema"]["properties"]
        assert {"messages", "stream"} <= set(fields)
        produced = set(chat["responses"]["200"]["content"])
        assert produced == {"application/json", "text/event-stream"}
        model = schema["paths"]["/v1/models/{model_id}"]["get"]
        assert [(one["name"], one["in"]) for one in model["parameters"]] == [("model_id", "path")]
        assert "#/$defs" not in str(schema)  # every reference is within the document
        docs = await built.http.get("/docs")
        assert docs.status_code == 200
        assert "https://" not in docs.text  # works without a network
