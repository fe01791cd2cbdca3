"""``/openapi.json``, and ``/docs``: the same as one page that needs no network and no script."""

from collections.abc import Iterable, Iterator
from html import escape
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse

from app.deps import get_api
from app.openapi import INFO
from app.routing import Endpoint

if TYPE_CHECKING:
    from app.tables import Table

STYLE = """
:root{color-scheme:light dark}
body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}
h2{margin-top:2.5rem;border-top:1px solid #8884;padding-top:1rem;font-size:1.1rem}
h2 b{background:#246;color:#fff;border-radius:4px;padding:.1rem .5rem;font-size:.8em}
h3{font-size:1rem}
div{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:14px}
td,th{border-bottom:1px solid #8884;padding:.3rem .5rem;text-align:left;vertical-align:top}
code{font-size:.95em;background:#8882;padding:.05rem .3rem}
"""


async def openapi(request: Request) -> JSONResponse:
    """The route table as OpenAPI 3.1."""
    return JSONResponse(get_api(request).schema)


async def docs(request: Request) -> HTMLResponse:
    """Every route with its request fields and their meanings."""
    return HTMLResponse(render(get_api(request).endpoints))


def render(endpoints: Iterable[Endpoint]) -> str:
    """The page for a route table."""
    from app.meanings import Meanings  # read only when somebody looks
    from app.tables import tables

    meanings = Meanings.load()
    title = escape(f"{INFO['title']} {INFO['version']}")
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width,initial-scale=1'>"
        f"<title>{title}</title><style>{STYLE}</style><h1>{title}</h1>"
        f"<p>{escape(INFO['summary'])}. The same as data: "
        "<a href=openapi.json>openapi.json</a>. <a href=./>Playground</a>.</p>"
    ]
    objects: dict[str, Table] = {}
    for endpoint in endpoints:
        if endpoint.tag is None:
            continue
        parts.append(f"<h2><b>{endpoint.method}</b> <code>{escape(endpoint.path)}</code></h2>")
        parts.append(f"<p>{escape(endpoint.description)}</p>")
        body = endpoint.body_model
        if body is not None:
            first, *nested = tables(body, meanings)
            parts += _rows(first)
            objects.update((table.name, table) for table in nested)
    parts.append("<h2>Objects</h2>")
    for table in objects.values():
        parts.append(f"<h3>{escape(table.name)}</h3><p>{escape(table.about)}</p>")
        parts += _rows(table)
    return "".join(parts) + "</html>"


def _rows(table: "Table") -> Iterator[str]:
    yield "<div><table><tr>" + "".join(f"<th>{head}" for head in table.heads)
    for row in table.rows:
        words = "".join("<td>" + escape(cell).replace("`", "") for cell in row.cells)
        yield f"<tr><td><code>{escape(row.name)}</code>{words}"
    yield "</table></div>"


ENDPOINTS = (
    Endpoint("GET", "/openapi.json", openapi, tag="pages", head=True),
    Endpoint("GET", "/docs", docs, tag="pages", produces=("text/html; charset=utf-8",), head=True),
)
