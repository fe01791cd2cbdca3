"""``/openapi.json``: the route table described as OpenAPI 3.1, made when first asked for."""

import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from app.auth import OPEN_PATHS
from app.dialect import is_anthropic_path
from app.protocol.body import RequestModel
from app.routing import JSON, Endpoint, needs_engine
from app.sse import EVENT_STREAM
from engine import __version__

if TYPE_CHECKING:
    from app.meanings import Meanings

INFO = {
    "title": "Flare",
    "summary": "OpenAI-compatible server for exported language models",
    "version": __version__,
}
NULLABLE = {"anyOf": [{"type": "string"}, {"type": "null"}]}
ERROR = {
    "title": "Error",
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": NULLABLE,
                "code": NULLABLE,
            },
        }
    },
}
BEARER = {"type": "http", "scheme": "bearer", "description": "Asked for when keys are configured."}
ANTHROPIC_ERROR = {
    "title": "AnthropicError",
    "type": "object",
    "required": ["type", "error", "request_id"],
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
        },
        "request_id": NULLABLE,
    },
}
REQUEST_ID = {
    "description": "The client's own x-request-id, or a new one; it is in the server's log, too.",
    "schema": {"type": "string"},
}
RETRY_AFTER = {"description": "Seconds to wait.", "schema": {"type": "string"}}
FAILURES = {
    400: "The request is wrong; param names the field",
    401: "A key is needed and is missing or wrong",
    403: "Switched off in the settings",
    404: "The model, or what the path names, does not exist",
    409: "The selection cannot be served; nothing changed",
    413: "The body is too large",
    429: "The queue is full",
    500: "The engine failed on this request",
    501: "Not supported by the loaded model or by this version",
    503: "Loading, shutting down or broken",
}
EVENTS = {
    "type": "string",
    "description": (
        "Server-sent events: lines of data, each a JSON object; comment lines keep the connection"
        " alive. An error before the first event is an ordinary JSON answer with its own status;"
        " later it is one event with an error object, and the end."
    ),
}
_PARAMETER = re.compile(r"{(\w+)(?::\w+)?}")


class ApiDescription:
    """The OpenAPI document of a route table."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self._endpoints = tuple(endpoints)

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """What is served, in the order of the documents."""
        return self._endpoints

    @cached_property
    def schema(self) -> dict[str, Any]:
        """The document; built once."""
        from app.meanings import Meanings  # read only when somebody asks

        meanings = Meanings.load()
        paths: dict[str, dict[str, Any]] = {}
        for endpoint in self._endpoints:
            if endpoint.tag is not None:
                path = _PARAMETER.sub(r"{\1}", endpoint.path)
                paths.setdefault(path, {})[endpoint.method.lower()] = _operation(
                    endpoint, path, meanings
                )
        schemas = {"Error": ERROR, "AnthropicError": ANTHROPIC_ERROR}
        components = {"schemas": schemas, "securitySchemes": {"bearer": BEARER}}
        return {"openapi": "3.1.0", "info": INFO, "paths": paths, "components": components}


def _operation(endpoint: Endpoint, path: str, meanings: "Meanings") -> dict[str, Any]:
    unique = re.sub(r"\W", "_", f"{endpoint.name}{path}_{endpoint.method.lower()}")
    operation: dict[str, Any] = {
        "tags": [endpoint.tag],
        "summary": _title(endpoint.name),
        "description": endpoint.description,
        "operationId": unique,
        "security": [] if path in OPEN_PATHS else [{}, {"bearer": []}],
        "responses": {
            "200": _success(endpoint),
            **{str(status): _failure(status, path) for status in _statuses(endpoint, path)},
        },
    }
    names = _PARAMETER.findall(endpoint.path)
    if names:
        operation["parameters"] = [_path_parameter(name) for name in names]
    body = endpoint.body_model
    if body is not None:
        content = {JSON: {"schema": _body_schema(body, meanings)}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _success(endpoint: Endpoint) -> dict[str, Any]:
    content = {kind: {"schema": _answer_schema(kind)} for kind in endpoint.produces}
    return {"description": "Success", "headers": {"x-request-id": REQUEST_ID}, "content": content}


def _answer_schema(kind: str) -> dict[str, Any]:
    if kind == EVENT_STREAM:
        return EVENTS
    return {"type": "object"} if kind == JSON else {"type": "string"}


def _statuses(endpoint: Endpoint, path: str) -> list[int]:
    """The failures that an endpoint may answer with."""
    found = set(endpoint.failures)
    if path not in OPEN_PATHS:
        found.add(401)
    if path == "/health" or needs_engine(path):
        found.add(503)
    if "{" in path:
        found |= {400, 404}
    if endpoint.method == "POST":
        found |= {400, 404, 413, 500}
    if endpoint.tag == "generation" and endpoint.method == "POST":
        found.add(429)
    return sorted(found)


def _failure(status: int, path: str) -> dict[str, Any]:
    name = "AnthropicError" if is_anthropic_path(path) else "Error"
    headers: dict[str, Any] = {"x-request-id": REQUEST_ID}
    if status in (429, 503):
        headers["retry-after"] = RETRY_AFTER
    content = {JSON: {"schema": {"$ref": f"#/components/schemas/{name}"}}}
    return {"description": FAILURES[status], "headers": headers, "content": content}


def _path_parameter(name: str) -> dict[str, Any]:
    schema = {"title": _title(name), "type": "string"}
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _title(name: str) -> str:
    return name.replace("_", " ").title()


def _body_schema(model: type[RequestModel], meanings: "Meanings") -> Any:
    """The schema of ``model`` with meanings, and with nested definitions written in place."""
    from app.tables import described_schema

    schema = described_schema(model, meanings)
    definitions = schema.pop("$defs", {})
    return _inline(schema, definitions)


def _inline(node: Any, definitions: Mapping[str, Any]) -> Any:
    if isinstance(node, list):
        return [_inline(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    reference = node.get("$ref")
    if isinstance(reference, str):
        target = _inline(definitions[reference.rpartition("/")[2]], definitions)
        beside = {key: value for key, value in node.items() if key != "$ref"}
        return {**target, **beside}
    return {key: _inline(value, definitions) for key, value in node.items()}
