"""``/v1/config``: what runs now, graph by graph."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse

from app.auth import bearer_token, matches, unauthorized
from app.deps import ConfigDep, ContextDep
from app.errors import ApiError
from engine import __version__

router = APIRouter(prefix="/v1/config", tags=["operations"])


@router.get("")
async def get_config(context: ContextDep) -> JSONResponse:
    """Model, core, selection, ranks and limits of the running engine."""
    described = context.engine.describe()
    return JSONResponse({"object": "config", "version": __version__, **described})


@router.post("")
async def switch(request: Request, config: ConfigDep) -> JSONResponse:
    """Live switch of the graph selection: needs the admin key, and is not available yet."""
    if config.admin_key is None:
        raise ApiError(
            403, "Changing the configuration is off: FLARE_ADMIN_KEY is not set.", code="forbidden"
        )
    token = bearer_token(request.scope)
    if not matches(token, [config.admin_key]):
        raise unauthorized(token)
    raise ApiError(
        501,
        "Switching the graph selection of a running server is not supported;"
        " start it with --mixed-prefill or --no-mixed-prefill.",
        code="not_supported",
    )
