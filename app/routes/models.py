"""``/v1/models``: the served names of the one loaded model."""

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse

from app.deps import get_context
from app.errors import ApiError
from app.routing import Endpoint
from app.serving.context import ServingContext


async def list_models(request: Request) -> JSONResponse:
    """Every name that requests may give as ``model``."""
    context = get_context(request)
    data = [_model(context, name) for name in context.model_names]
    return JSONResponse({"object": "list", "data": data})


async def get_model(request: Request) -> JSONResponse:
    """One served name; 404 for any other."""
    context = get_context(request)
    model_id = request.path_params["model_id"]
    if model_id not in context.model_names:
        message = f"The model {model_id!r} does not exist."
        raise ApiError(404, message, param="model", code="model_not_found")
    return JSONResponse(_model(context, model_id))


def _model(context: ServingContext, name: str) -> dict[str, Any]:
    model = context.engine.model
    return {
        "id": name,
        "object": "model",
        "created": model.created,
        "owned_by": "flare",
        "max_model_len": model.context_length,
    }


ENDPOINTS = (
    Endpoint("GET", "/v1/models", list_models, tag="models"),
    Endpoint("GET", "/v1/models/{model_id:path}", get_model, tag="models"),
)
