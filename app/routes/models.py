"""``/v1/models``: the served names of the one loaded model."""

from typing import Any

from fastapi import APIRouter
from starlette.responses import JSONResponse

from app.deps import ContextDep
from app.errors import ApiError
from app.serving.context import ServingContext

router = APIRouter(prefix="/v1/models", tags=["models"])


@router.get("")
async def list_models(context: ContextDep) -> JSONResponse:
    """Every name that requests may give as ``model``."""
    data = [_model(context, name) for name in context.model_names]
    return JSONResponse({"object": "list", "data": data})


@router.get("/{model_id:path}")
async def get_model(model_id: str, context: ContextDep) -> JSONResponse:
    """One served name; 404 for any other."""
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
