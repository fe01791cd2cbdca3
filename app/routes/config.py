"""``/v1/config``: what runs now, graph by graph."""

from starlette.requests import Request
from starlette.responses import JSONResponse

from app.auth import bearer_token, matches, unauthorized
from app.deps import get_context, get_server_config
from app.errors import ApiError
from app.routing import Endpoint
from engine import __version__


async def get_config(request: Request) -> JSONResponse:
    """Model, core, selection, ranks and limits of the running engine."""
    described = get_context(request).engine.describe()
    return JSONResponse({"object": "config", "version": __version__, **described})


async def switch(request: Request) -> JSONResponse:
    """Live switch of the graph selection: needs the admin key, and is not available yet."""
    admin_key = get_server_config(request).admin_key
    if admin_key is None:
        raise ApiError(
            403, "Changing the configuration is off: FLARE_ADMIN_KEY is not set.", code="forbidden"
        )
    token = bearer_token(request.scope)
    if not matches(token, [admin_key]):
        raise unauthorized(token)
    raise ApiError(
        501,
        "Switching the graph selection of a running server is not supported;"
        " start it with --mixed-prefill or --no-mixed-prefill.",
        code="not_supported",
    )


ENDPOINTS = (
    Endpoint("GET", "/v1/config", get_config, tag="operations"),
    Endpoint("POST", "/v1/config", switch, tag="operations", failures=(403, 501)),
)
