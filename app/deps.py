"""What routes ask for: the service, its serving context, the server's configuration."""

from typing import TYPE_CHECKING, cast

from starlette.requests import Request

from app.config import ServerConfig
from app.observe import HttpMetrics
from app.openapi import ApiDescription
from app.service import Service
from app.serving.context import ServingContext

if TYPE_CHECKING:  # most servers never get a request that needs it
    from app.serving.responses.store import ResponseStore


def get_service(request: Request) -> Service:
    return cast(Service, request.app.state.service)


def get_context(request: Request) -> ServingContext:
    """The serving context. Raises ApiError (503) while loading, draining or failed."""
    return get_service(request).context


def get_server_config(request: Request) -> ServerConfig:
    return cast(ServerConfig, request.app.state.config)


def get_response_store(request: Request) -> "ResponseStore":
    """Where responses are kept; made when first asked for."""
    from app.serving.responses.store import ResponseStore

    state = request.app.state
    if state.responses is None:
        state.responses = ResponseStore(get_server_config(request).response_store_bytes)
    return cast(ResponseStore, state.responses)


def get_http_metrics(request: Request) -> HttpMetrics:
    return cast(HttpMetrics, request.app.state.http_metrics)


def get_api(request: Request) -> ApiDescription:
    return cast(ApiDescription, request.app.state.api)
