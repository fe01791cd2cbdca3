"""Build the HTTP application: middleware, routes, error shape."""

from collections.abc import Callable
from concurrent.futures import Future

from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware

from app.auth import AuthMiddleware
from app.config import ServerConfig
from app.errors import install_error_handlers
from app.lifespan import make_lifespan
from app.loading import Loaded
from app.middleware import (
    REQUEST_ID,
    BodyLimitMiddleware,
    BoundaryMiddleware,
    ReadinessMiddleware,
    RecordMiddleware,
)
from app.observe import HttpMetrics
from app.openapi import ApiDescription
from app.routes import (
    chat,
    completions,
    config,
    docs,
    embeddings,
    health,
    messages,
    metrics,
    models,
    playground,
    responses,
    tokenize,
)
from app.routing import make_routes
from app.service import Service

MODULES = (
    chat,
    completions,
    responses,
    messages,
    tokenize,
    models,
    config,
    embeddings,
    metrics,
    health,
    docs,
    playground,
)
ENDPOINTS = tuple(endpoint for module in MODULES for endpoint in module.ENDPOINTS)


def create_app(
    server: ServerConfig,
    source: "Future[Loaded]",
    *,
    service: Service | None = None,
    on_loaded: Callable[[Service], None] = lambda service: None,
) -> Starlette:
    """The application over an engine that ``source`` brings, now or later.

    It answers from the start: 503 with Retry-After on serving routes until the engine is there.
    ``service`` is where the caller watches and steers the state; ``on_loaded`` is called when
    loading ends, well or not.
    """
    service = service or Service()
    app = Starlette(
        routes=make_routes(ENDPOINTS), lifespan=make_lifespan(service, source, server, on_loaded)
    )
    app.router.redirect_slashes = False
    app.state.service = service
    app.state.config = server
    app.state.responses = None
    app.state.http_metrics = HttpMetrics()
    app.state.api = ApiDescription(ENDPOINTS)
    install_error_handlers(app)
    _add_middleware(app, server, service)
    return app


def _add_middleware(app: Starlette, server: ServerConfig, service: Service) -> None:
    """Innermost first: what is added last is outermost, and that must be CORS."""
    app.add_middleware(BodyLimitMiddleware, limit=server.max_body_bytes)
    app.add_middleware(ReadinessMiddleware, service=service)
    app.add_middleware(AuthMiddleware, keys=server.api_keys, admin_key=server.admin_key)
    app.add_middleware(BoundaryMiddleware)
    app.add_middleware(RecordMiddleware, metrics=app.state.http_metrics)
    if server.cors_origins:
        # Bearer keys are plain headers: cookies, which "credentials" allows, are never used.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=server.cors_origins,
            allow_methods=("GET", "POST", "DELETE"),
            allow_headers=("*",),
            allow_credentials=False,
            expose_headers=(REQUEST_ID, "retry-after"),
        )
