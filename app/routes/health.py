"""Probes: ``/live`` while the process runs, ``/health`` when it can serve."""

from fastapi import APIRouter
from starlette.responses import JSONResponse

from app.deps import ServiceDep

router = APIRouter(tags=["operations"])


@router.get("/live")
async def live() -> JSONResponse:
    """200 while the process runs."""
    return JSONResponse({"status": "ok"})


@router.get("/health")
async def health(service: ServiceDep) -> JSONResponse:
    """200 when a request would be served now; 503 while loading, draining or broken."""
    refusal = service.refusal()
    if refusal is None:
        return JSONResponse({"status": "ok"})
    body = {"status": service.state.value, "error": refusal.as_object()}
    return JSONResponse(body, refusal.status, refusal.headers)
