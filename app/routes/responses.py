"""``/v1/responses``: create, read, delete, cancel, input items.

The models of this family are many: they are built when the first request comes.
"""

from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from app.auth import key_owner
from app.deps import get_context, get_response_store, get_server_config
from app.errors import ApiError
from app.protocol.body import read_body
from app.routing import JSON, Endpoint
from app.serving.respond import respond
from app.sse import EVENT_STREAM

if TYPE_CHECKING:
    from app.protocol.responses import ResponseRequest
    from app.serving.responses.store import StoredResponse

PATH = "/v1/responses"
ONE = PATH + "/{response_id}"


async def create_response(request: Request) -> Response:
    """Answer an input, in one piece or as server-sent events; keep it unless store is false."""
    from app.protocol.responses import RESPONSE_REFUSED, ResponseRequest
    from app.serving.responses.create import open_stream, start_response

    context = get_context(request)
    body = await read_body(request, ResponseRequest, RESPONSE_REFUSED)
    return await respond(
        request,
        start_response(context, get_response_store(request), _owner(request), body),
        stream=bool(body.stream),
        ping_seconds=context.ping_seconds,
        open_stream=open_stream,
    )


async def get_response(request: Request) -> Response:
    """A kept response."""
    from app.serving.responses.stored import check_reading

    stored = _stored(request)
    check_reading(request.query_params)
    return JSONResponse(stored.body)


async def delete_response(request: Request) -> Response:
    """Forget a kept response. Responses that went on from it keep what they were given."""
    stored = _stored(request)
    get_response_store(request).delete(_owner(request), stored.id)
    return JSONResponse({"id": stored.id, "object": "response", "deleted": True})


async def cancel_response(request: Request) -> Response:
    """Refused: only a response in the background can be cancelled, and there is none."""
    _stored(request)
    raise ApiError(400, "Only responses that were created with background true can be cancelled.")


async def list_input_items(request: Request) -> Response:
    """What the model was given for a kept response, earlier exchanges included."""
    from app.serving.responses.stored import page

    return JSONResponse(page(_stored(request), request.query_params))


def _owner(request: Request) -> bytes:
    return key_owner(request.scope, keyed=bool(get_server_config(request).api_keys))


def _stored(request: Request) -> "StoredResponse":
    """The response that the path names. Raises ApiError (404)."""
    from app.serving.responses.store import not_found

    get_context(request)
    response_id = request.path_params["response_id"]
    stored = get_response_store(request).get(_owner(request), response_id)
    if stored is None:
        raise not_found(response_id)
    return stored


def _body_model() -> "type[ResponseRequest]":
    from app.protocol.responses import ResponseRequest

    return ResponseRequest


ENDPOINTS = (
    Endpoint(
        "POST",
        PATH,
        create_response,
        tag="generation",
        load_body=_body_model,
        produces=(JSON, EVENT_STREAM),
    ),
    Endpoint("GET", ONE, get_response, tag="generation"),
    Endpoint("DELETE", ONE, delete_response, tag="generation"),
    Endpoint("POST", ONE + "/cancel", cancel_response, tag="generation"),
    Endpoint("GET", ONE + "/input_items", list_input_items, tag="generation"),
)
