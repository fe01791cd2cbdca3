"""A small HTTP server in the test's own event loop, to try clients against."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def loopback(handler: Handler) -> AsyncIterator[str]:
    """Serve every request with ``handler`` while the context lasts; gives the base URL."""
    runner = web.ServerRunner(web.Server(handler))
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


async def streamed(
    request: web.Request, parts: list[bytes], status: int = 200
) -> web.StreamResponse:
    """An answer in chunks."""
    response = web.StreamResponse(status=status)
    await response.prepare(request)
    for part in parts:
        await response.write(part)
    await response.write_eof()
    return response
