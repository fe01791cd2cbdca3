"""/openapi.json, /docs and docs/api-reference.md tell every field, as the models have it."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from app import reference
from app.main import ENDPOINTS
from app.meanings import Meanings, field_names, key, nested_models
from app.protocol.body import RequestModel
from tests.support.application import application

BODIES = [e for e in ENDPOINTS if e.body_model is not None]


def all_models() -> Iterator[type[RequestModel]]:
    for endpoint in BODIES:
        yield from nested_models(endpoint.body_model)  # type: ignore[arg-type]


def test_every_field_has_a_meaning() -> None:
    meanings = Meanings.load()
    for model in all_models():
        for name in field_names(model):
            meaning = meanings.of(model, name)
            assert meaning.text and meaning.origin, (key(model), name)


def test_no_meaning_is_of_a_field_that_is_gone() -> None:
    known = {
        (key(base), name)
        for model in all_models()
        for base in model.__mro__
        if issubclass(base, RequestModel)
        for name in field_names(base)
    }
    assert Meanings.load().names() <= known


def test_a_field_without_a_meaning_is_an_error() -> None:
    class Odd(RequestModel):
        unheard_of: int

    with pytest.raises(KeyError, match="unheard_of"):
        Meanings.load().of(Odd, "unheard_of")


def test_the_reference_is_current() -> None:
    """`make docs` writes it."""
    assert reference.FILE.read_text() == reference.markdown()


def test_the_refused_fields_of_every_body_are_listed() -> None:
    bodies = {e.body_model for e in BODIES}
    assert set(reference.REFUSED) <= bodies
    text = reference.markdown()
    for rules in reference.REFUSED.values():
        assert all(f"| `{name}` | `null`" in text for name in rules)


async def document() -> dict[str, Any]:
    async with application() as built:
        answer = await built.http.get("/openapi.json")
        assert answer.status_code == 200
        found: dict[str, Any] = answer.json()
        return found


async def test_openapi_describes_every_route_that_has_a_tag() -> None:
    paths = (await document())["paths"]
    for endpoint in ENDPOINTS:
        listed = paths.get(endpoint.path.replace(":path", ""), {})
        assert (endpoint.method.lower() in listed) is (endpoint.tag is not None)
    assert {"/", "/docs", "/openapi.json", "/health", "/metrics", "/v1/messages"} <= set(paths)


async def test_openapi_describes_streams_errors_and_fields() -> None:
    schema = await document()
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"):
        operation = schema["paths"][path]["post"]
        success = operation["responses"]["200"]["content"]
        assert set(success) == {"application/json", "text/event-stream"}
        assert "events" in success["text/event-stream"]["schema"]["description"]
        assert {"400", "401", "404", "413", "429", "500", "503"} <= set(operation["responses"])
        name = "AnthropicError" if path == "/v1/messages" else "Error"
        failure = operation["responses"]["400"]["content"]["application/json"]["schema"]
        assert failure == {"$ref": f"#/components/schemas/{name}"}
        body = operation["requestBody"]["content"]["application/json"]["schema"]
        assert list(undescribed(body)) == []
    identifiers = [o["operationId"] for p in schema["paths"].values() for o in p.values()]
    assert len(set(identifiers)) == len(identifiers)


def undescribed(schema: Any) -> Iterator[str]:
    """The properties within ``schema`` that say nothing about themselves."""
    if isinstance(schema, list):
        for item in schema:
            yield from undescribed(item)
    if isinstance(schema, dict):
        properties = schema.get("properties", {})
        if isinstance(properties, Mapping):
            for name, field in properties.items():
                if isinstance(field, dict) and not field.get("description"):
                    yield f"{name}: {json.dumps(field)}"
        for value in schema.values():
            yield from undescribed(value)


async def test_docs_shows_meanings_and_objects() -> None:
    async with application() as built:
        text = (await built.http.get("/docs")).text
    assert "randomness; 0 always takes the most likely token" in text
    assert "<h3>Message</h3>" in text and "<td>extension" in text
    assert "<script" not in text and "http" not in text.replace("https", "").split("<h2>")[0]
