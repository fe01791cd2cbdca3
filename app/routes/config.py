"""``/v1/config``: what runs now, graph by graph, and the live switch of the selection."""

from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse

from app.auth import bearer_token, matches, unauthorized
from app.deps import get_context, get_server_config
from app.errors import ApiError
from app.routing import Endpoint
from engine import __version__
from engine.errors import DeviceError, FlareError, LiveSwitchOffError, SelectionError

if TYPE_CHECKING:
    from app.protocol.config import SwitchRequest

REFUSED: dict[type[FlareError], str] = {
    SelectionError: "selection_refused",
    DeviceError: "device_failed",
}
"""What a switch may be refused with, as loading is, and the code of the answer."""


async def get_config(request: Request) -> JSONResponse:
    """Model, core, selection, ranks and limits of the running engine."""
    return _config(get_context(request).engine.describe())


async def switch(request: Request) -> JSONResponse:
    """Change the graph selection between two steps of the running engine; needs the admin key.

    Answers what GET answers then, with `graphs.epoch` one higher. Running requests go on, their
    texts are the same. 409, and nothing changes, when the selection cannot be served; the message
    says why, graph by graph. 403 without FLARE_ADMIN_KEY and with FLARE_LIVE_SWITCH=false.
    """
    from app.protocol.body import read_body
    from app.protocol.config import SwitchRequest

    _check_admin(request)
    context = get_context(request)
    body = await read_body(request, SwitchRequest, {})
    try:
        return _config(await context.engine.switch(body.mixed_prefill))
    except LiveSwitchOffError as error:
        message = f"{error}; start the server without --no-live-switch (FLARE_LIVE_SWITCH)."
        raise ApiError(403, message.capitalize(), code=error.code) from None
    except tuple(REFUSED) as error:
        raise _refusal(error) from error


def _config(described: dict[str, Any]) -> JSONResponse:
    return JSONResponse({"object": "config", "version": __version__, **described})


def _check_admin(request: Request) -> None:
    admin_key = get_server_config(request).admin_key
    if admin_key is None:
        raise ApiError(
            403, "Changing the configuration is off: FLARE_ADMIN_KEY is not set.", code="forbidden"
        )
    token = bearer_token(request.scope)
    if not matches(token, [admin_key]):
        raise unauthorized(token)


def _refusal(error: FlareError) -> ApiError:
    code = next(code for kind, code in REFUSED.items() if isinstance(error, kind))
    hint = f" ({error.hint})" if error.hint else ""
    return ApiError(409, f"{error}{hint}", param="mixed_prefill", code=code)


def _body() -> "type[SwitchRequest]":
    from app.protocol.config import SwitchRequest

    return SwitchRequest


ENDPOINTS = (
    Endpoint("GET", "/v1/config", get_config, tag="operations"),
    Endpoint("POST", "/v1/config", switch, tag="operations", load_body=_body, failures=(403, 409)),
)
