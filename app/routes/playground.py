"""``/``: the playground, a page of the package's own files, read when they are asked for."""

from hashlib import sha256
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from app.routing import Endpoint

HTML = "text/html; charset=utf-8"
FOLDER = Path(__file__).parents[1] / "static"
HEADERS = {
    "cache-control": "no-cache",  # kept by the browser, but asked for again: 304 while unchanged
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
        " img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


async def playground(request: Request) -> Response:
    """A page to chat with the model and to watch the engine; it asks for the API key itself."""
    return _file(request, "playground.html", HTML)


async def playground_style(request: Request) -> Response:
    """The style of the playground."""
    return _file(request, "playground.css", "text/css")


async def playground_script(request: Request) -> Response:
    """The program of the playground."""
    return _file(request, "playground.js", "text/javascript")


def _file(request: Request, name: str, kind: str) -> Response:
    data = (FOLDER / name).read_bytes()
    tag = f'"{sha256(data).hexdigest()[:32]}"'
    headers = {**HEADERS, "etag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(data, headers=headers, media_type=kind)


ENDPOINTS = (
    Endpoint("GET", "/", playground, tag="pages", produces=(HTML,), head=True),
    Endpoint("GET", "/playground.css", playground_style, head=True),
    Endpoint("GET", "/playground.js", playground_script, head=True),
)
