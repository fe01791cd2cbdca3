"""``/metrics``: Prometheus text of the engine and of the HTTP face."""

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import Response

from app.deps import get_http_metrics, get_service
from app.routing import Endpoint


async def metrics(request: Request) -> Response:
    """All series; the engine's appear once it is loaded."""
    service = get_service(request)
    text = generate_latest(get_http_metrics(request).registry)
    if service.engine_metrics is not None:
        text += generate_latest(service.engine_metrics)
    return Response(text, media_type=CONTENT_TYPE_LATEST)


ENDPOINTS = (
    Endpoint("GET", "/metrics", metrics, tag="operations", produces=(CONTENT_TYPE_LATEST,)),
)
