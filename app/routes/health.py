"""Probes: ``/live`` while the process runs, ``/health`` when it can serve."""

from starlette.requests import Request
from starlette.responses import JSONResponse

from app.deps import get_service
from app.routing import Endpoint


async def live(request: Request) -> JSONResponse:
    """200 while the process runs."""
    return JSONResponse({"status": "ok"})


async def health(request: Request) -> JSONResponse:
    """200 when a request would be served now; 503 while loading, draining or broken."""
    service = get_service(request)
    refusal = service.refusal()
    if refusal is None:
        return JSONResponse({"status": "ok"})
    body = {"status": service.state.value, "error": refusal.as_object()}
    return JSONResponse(body, refusal.status, refusal.headers)


ENDPOINTS = (
    Endpoint("GET", "/live", live, tag="operations"),
    Endpoint("GET", "/health", health, tag="operations"),
)
