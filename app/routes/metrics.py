"""``/metrics``: Prometheus text of the engine and of the HTTP face."""

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import Response

from app.deps import HttpMetricsDep, ServiceDep

router = APIRouter(tags=["operations"])


@router.get("/metrics")
async def metrics(service: ServiceDep, http: HttpMetricsDep) -> Response:
    """All series; the engine's appear once it is loaded."""
    text = generate_latest(http.registry)
    if service.engine_metrics is not None:
        text += generate_latest(service.engine_metrics)
    return Response(text, media_type=CONTENT_TYPE_LATEST)
