"""``/v1/models``: the served names of the one loaded model, as OpenAI or Anthropic lists them."""

from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse

from app.deps import get_context
from app.dialect import speaks_anthropic
from app.errors import ApiError
from app.routing import Endpoint
from app.serving.context import ServingContext


async def list_models(request: Request) -> JSONResponse:
    """Every name that requests may give as ``model``; a client of Anthropic's gets its shape."""
    context = get_context(request)
    names = context.model_names
    if not speaks_anthropic(request.scope):
        return JSONResponse({"object": "list", "data": [_model(context, name) for name in names]})
    page = {"first_id": names[0], "last_id": names[-1], "has_more": False}
    return JSONResponse({"data": [_anthropic_model(context, name) for name in names], **page})


async def get_model(request: Request) -> JSONResponse:
    """One served name; 404 for any other."""
    context = get_context(request)
    model_id = request.path_params["model_id"]
    if model_id not in context.model_names:
        message = f"The model {model_id!r} does not exist."
        raise ApiError(404, message, param="model", code="model_not_found")
    shape = _anthropic_model if speaks_anthropic(request.scope) else _model
    return JSONResponse(shape(context, model_id))


def _model(context: ServingContext, name: str) -> dict[str, Any]:
    model = context.engine.model
    return {
        "id": name,
        "object": "model",
        "created": model.created,
        "owned_by": "flare",
        "max_model_len": model.context_length,
    }


def _anthropic_model(context: ServingContext, name: str) -> dict[str, Any]:
    model = context.engine.model
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": datetime.fromtimestamp(model.created, UTC).isoformat(),
        "lifecycle": "active",
        "max_input_tokens": model.context_length,
        "max_tokens": model.context_length,
    }


ENDPOINTS = (
    Endpoint("GET", "/v1/models", list_models, tag="models"),
    Endpoint("GET", "/v1/models/{model_id:path}", get_model, tag="models"),
)
