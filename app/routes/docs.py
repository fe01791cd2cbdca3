"""``/openapi.json``, and ``/docs``: the same as one page that needs no network and no script."""

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse

from app.deps import get_api
from app.routing import Endpoint

STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}
h2{margin-top:2.5rem;border-top:1px solid #ddd;padding-top:1rem}
h2 b{background:#246;color:#fff;border-radius:4px;padding:.1rem .5rem;font-size:.8em}
table{border-collapse:collapse;width:100%;font-size:14px}
td,th{border-bottom:1px solid #eee;padding:.3rem .5rem;text-align:left;vertical-align:top}
code{font-size:.95em;background:#f5f5f5;padding:.05rem .3rem}
"""


async def openapi(request: Request) -> JSONResponse:
    """The route table as OpenAPI 3.1."""
    return JSONResponse(get_api(request).schema)


async def docs(request: Request) -> HTMLResponse:
    """Every route with its request fields, from the same schema as /openapi.json."""
    return HTMLResponse(render(get_api(request).schema))


def render(schema: Mapping[str, Any]) -> str:
    """The page for an OpenAPI schema."""
    info = schema["info"]
    title = escape(f"{info['title']} {info['version']}")
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title>"
        f"<style>{STYLE}</style><h1>{title}</h1><p>{escape(info.get('summary', ''))}. "
        "The same as data: <a href=openapi.json>openapi.json</a>.</p>"
        + "".join(_operations(schema["paths"]))
        + "</html>"
    )


def _operations(paths: Mapping[str, Any]) -> Iterator[str]:
    for path, methods in paths.items():
        for method, operation in methods.items():
            yield f"<h2><b>{method.upper()}</b> <code>{escape(path)}</code></h2>"
            yield f"<p>{escape(operation.get('description', ''))}</p>"
            yield from _body(operation.get("requestBody", {}))


def _body(body: Mapping[str, Any]) -> Iterator[str]:
    schema = body.get("content", {}).get("application/json", {}).get("schema", {})
    if not schema.get("properties"):
        return
    required = set(schema.get("required", ()))
    yield "<table><tr><th>field<th>type<th>default<th>meaning"
    for name, field in schema["properties"].items():
        default = "required" if name in required else json.dumps(field.get("default"))
        cells = (name, _type(field), default, field.get("description", ""))
        yield "<tr><td><code>{}</code><td>{}<td>{}<td>{}".format(*map(escape, cells))
    yield "</table>"


def _type(field: Mapping[str, Any]) -> str:
    """A short word for a field's type, the members of a union joined by "or"."""
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(_type(member) for member in field["anyOf"]))
    if "enum" in field or "const" in field:
        return " | ".join(json.dumps(value) for value in field.get("enum", [field.get("const")]))
    if field.get("type") == "array":
        return f"list of {_type(field.get('items', {}))}"
    return str(field.get("type", "any"))


ENDPOINTS = (
    Endpoint("GET", "/openapi.json", openapi, head=True),
    Endpoint("GET", "/docs", docs, produces=("text/html",)),
)
