"""``/v1/embeddings``: refused by name until a model supports it."""

from fastapi import APIRouter
from starlette.responses import Response

from app.errors import ApiError

router = APIRouter(tags=["models"])


@router.post("/v1/embeddings")
async def embeddings() -> Response:
    """501: generative models only."""
    message = "Embeddings are not supported by the loaded model."
    raise ApiError(501, message, param="model", code="not_supported")
