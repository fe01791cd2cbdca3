"""``/openapi.json``: the route table described as OpenAPI 3.1, made when first asked for."""

import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from app.auth import OPEN_PATHS
from app.protocol.body import RequestModel
from app.routing import JSON, Endpoint
from engine import __version__

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
FAILURE = {
    "description": "An error, as OpenAI words it",
    "content": {JSON: {"schema": {"$ref": "#/components/schemas/Error"}}},
}
_PARAMETER = re.compile(r"{(\w+)(?::\w+)?}")


class ApiDescription:
    """The OpenAPI document of a route table."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self._endpoints = tuple(endpoints)

    @cached_property
    def schema(self) -> dict[str, Any]:
        """The document; built once."""
        paths: dict[str, dict[str, Any]] = {}
        for endpoint in self._endpoints:
            if endpoint.tag is not None:
                path = _PARAMETER.sub(r"{\1}", endpoint.path)
                paths.setdefault(path, {})[endpoint.method.lower()] = _operation(endpoint, path)
        components = {"schemas": {"Error": ERROR}, "securitySchemes": {"bearer": BEARER}}
        return {"openapi": "3.1.0", "info": INFO, "paths": paths, "components": components}


def _operation(endpoint: Endpoint, path: str) -> dict[str, Any]:
    unique = re.sub(r"\W", "_", f"{endpoint.name}{path}_{endpoint.method.lower()}")
    operation: dict[str, Any] = {
        "tags": [endpoint.tag],
        "summary": _title(endpoint.name),
        "description": endpoint.description,
        "operationId": unique,
        "security": [] if path in OPEN_PATHS else [{}, {"bearer": []}],
        "responses": {"200": _success(endpoint), "default": FAILURE},
    }
    names = _PARAMETER.findall(endpoint.path)
    if names:
        operation["parameters"] = [_path_parameter(name) for name in names]
    body = endpoint.body_model
    if body is not None:
        content = {JSON: {"schema": _body_schema(body)}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _success(endpoint: Endpoint) -> dict[str, Any]:
    content: dict[str, Any] = {kind: {"schema": {}} for kind in endpoint.produces}
    return {"description": "Successful Response", "content": content}


def _path_parameter(name: str) -> dict[str, Any]:
    schema = {"title": _title(name), "type": "string"}
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _title(name: str) -> str:
    return name.replace("_", " ").title()


def _body_schema(model: type[RequestModel]) -> Any:
    """The schema of ``model``, with nested definitions written in place."""
    schema = model.model_json_schema()
    definitions = schema.pop("$defs", {})
    return _inline(schema, definitions)


def _inline(node: Any, definitions: Mapping[str, Any]) -> Any:
    if isinstance(node, list):
        return [_inline(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    reference = node.get("$ref")
    if isinstance(reference, str):
        return _inline(definitions[reference.rpartition("/")[2]], definitions)
    return {key: _inline(value, definitions) for key, value in node.items()}
