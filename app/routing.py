"""The route table: what is served where, for the router and for the API description."""

import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from app.protocol.body import RequestModel

JSON = "application/json"


class Handler(Protocol):
    """A function that answers a request; its name and docstring describe the endpoint."""

    __name__: str

    def __call__(self, request: Request, /) -> Awaitable[Response]: ...


class Endpoint(Struct, frozen=True):
    """One method of one path. ``body`` is the model of its request, if it takes one.

    ``produces`` are the content types of its success. Without ``tag`` it is left out of the API's
    description. ``head``: it answers HEAD, too. ``load_body`` stands for ``body`` where the model
    is only built when somebody asks for it. ``failures``: statuses that its kind does not tell.
    """

    method: str
    path: str
    handler: Handler
    tag: str | None = None
    body: type[RequestModel] | None = None
    produces: tuple[str, ...] = (JSON,)
    head: bool = False
    load_body: Callable[[], type[RequestModel]] | None = None
    failures: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """The name of the handler."""
        return self.handler.__name__

    @property
    def body_model(self) -> type[RequestModel] | None:
        """The model of the request's body, if it takes one."""
        return self.load_body() if self.load_body is not None else self.body

    @property
    def description(self) -> str:
        """The docstring of the handler."""
        return inspect.getdoc(self.handler) or ""


def needs_engine(path: str) -> bool:
    """Whether what is at ``path`` can only be answered with the loaded engine."""
    return path == "/v1" or path.startswith(("/v1/", "/tokenize", "/detokenize"))


def make_routes(endpoints: Iterable[Endpoint]) -> list[Route]:
    """The routes of ``endpoints``, which answer the methods named and no others."""
    return [_route(endpoint) for endpoint in endpoints]


def _route(endpoint: Endpoint) -> Route:
    route = Route(endpoint.path, endpoint.handler, methods=[endpoint.method])
    if not endpoint.head and route.methods is not None:
        route.methods.discard("HEAD")  # which comes with GET unasked
    return route
