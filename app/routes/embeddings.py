"""``/v1/embeddings``: refused by name until a model supports it."""

from starlette.requests import Request
from starlette.responses import Response

from app.errors import ApiError
from app.routing import Endpoint


async def embeddings(request: Request) -> Response:
    """501: generative models only."""
    message = "Embeddings are not supported by the loaded model."
    raise ApiError(501, message, param="model", code="not_supported")


ENDPOINTS = (Endpoint("POST", "/v1/embeddings", embeddings, tag="models", failures=(501,)),)
