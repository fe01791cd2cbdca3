"""Run the application: bind, serve, drain on SIGTERM, end."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Generator

import uvicorn
from starlette.applications import Starlette

from app.connection import Connection
from app.service import Service
from engine.errors import INTERRUPTED

logger = logging.getLogger("flare.server")

CLOSE_SECONDS = 5
"""How long connections may take to send what is left after a drain."""


class _Uvicorn(uvicorn.Server):
    """uvicorn without its own signal handlers: a drain answers requests, theirs would not."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class Runner:
    """One run of the server: ends by a signal (after a drain) or because loading failed."""

    def __init__(self, listener: socket.socket, service: Service, drain_seconds: float) -> None:
        self._listener = listener
        self._service = service
        self._drain_seconds = drain_seconds
        self._signal: signal.Signals | None = None
        self._drain: asyncio.Task[None] | None = None
        self._server: _Uvicorn | None = None

    def run(self, app: Starlette) -> int:
        """Serve ``app`` until the end; 0, or 130 when Ctrl-C was the reason."""
        config = _uvicorn_config(app)
        self._server = _Uvicorn(config)
        with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
            runner.run(self._serve(self._server))
        return INTERRUPTED if self._signal is signal.SIGINT else 0

    def stop(self) -> None:
        """End now; answers that are under way are cut after ``CLOSE_SECONDS``."""
        if self._server is not None:
            self._server.should_exit = True

    async def _serve(self, server: _Uvicorn) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        await server.serve(sockets=[self._listener])

    def _on_signal(self, number: signal.Signals) -> None:
        """First signal: drain. Second: end at once, whatever runs."""
        if self._signal is not None:
            logger.warning("second signal: ending at once")
            os._exit(INTERRUPTED)
        self._signal = number
        self._drain = asyncio.ensure_future(self._drain_and_stop())

    async def _drain_and_stop(self) -> None:
        self._service.begin_drain()
        context = self._service.loaded
        try:
            if context is not None:
                logger.info(
                    "draining, up to %g s; a second signal ends at once", self._drain_seconds
                )
                await context.engine.drain(self._drain_seconds)
        finally:
            self.stop()


def _uvicorn_config(app: Starlette) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        loop="uvloop",
        http=Connection,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=CLOSE_SECONDS,
    )
