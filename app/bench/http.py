"""HTTP for measuring: a client that costs little, on an event loop that costs little.

What the client spends comes out of the server's cores when both share a machine. Per streamed
chunk on two cores, aiohttp on uvloop took a third of the processor time of httpx on asyncio.
"""

from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

from engine.errors import SettingsError

try:
    import aiohttp
except ModuleNotFoundError as missing:
    raise SettingsError(
        "this command needs aiohttp, which is not installed", "pip install 'flare-serve[bench]'"
    ) from missing

__all__ = ["aiohttp", "run", "session"]

Result = TypeVar("Result")


def session(timeout_s: float, api_key: str | None = None) -> aiohttp.ClientSession:
    """A session with as many connections as are wanted. Call it in a running event loop.

    timeout_s: to connect, and without a byte from the server. Each request has a connection of
    its own: no server is measured on another one's keep-alive. Proxies of the environment are
    not used.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=timeout_s, sock_read=timeout_s),
        headers={"Authorization": f"Bearer {api_key}"} if api_key else None,
    )


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """``asyncio.run`` on uvloop."""
    return uvloop.run(work)
