"""``flare run``: serve a core. Its storage is hashed beside the import of what reads settings, and
the engine loads beside the import of the web stack."""

import gc
import importlib
import json
import logging
import os
import signal
import socket
import sys
import time
from concurrent.futures import Future
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from app.commands.default_core import default_core_path, ensure_default_core
from app.listener import bind, url_of
from app.loading import Loaded, start_loading
from app.logging import configure_logging
from engine.ahead import EarlyHashing, hash_early
from engine.errors import INTERRUPTED

if TYPE_CHECKING:
    from app.service import Service
    from app.settings import Settings

logger = logging.getLogger("flare.server")
WEB_STACK = (
    "starlette.applications",
    "prometheus_client",
    "app.serving.context",
    "app.protocol.chat",
    "uvicorn",
    "app.server",
    "app.main",
)
"""Modules that are imported one after the other: no more of them once loading has failed."""


def main(arguments: list[str]) -> int:
    """Serve until a signal; the exit code. Raises the error that loading ended with."""
    started = time.perf_counter()
    gc.disable()  # until the server is ready
    signal.signal(signal.SIGTERM, _leave)  # until the server has handlers of its own
    early = _hash_early(arguments)
    try:
        return _run(arguments, early, started)
    finally:
        if early is not None:
            early.stop()


def _hash_early(arguments: list[str]) -> EarlyHashing | None:
    """Begin to hash what looks like the core of the command line, or else of the variable. A guess:
    it is made before the settings are read, and dropped when they name another core."""
    words = [word for word in arguments if word and not word.startswith("-")]
    words.append(os.environ.get("FLARE_CORE", "").strip() or str(default_core_path()))
    return next(filter(None, (hash_early(Path(word)) for word in words)), None)


def _run(arguments: list[str], early: EarlyHashing | None, started: float) -> int:
    # Imported here, while the storage is hashed: settings and options are a fifth of a start.
    from app.commands.run_options import make_parser
    from app.sources import load_settings, unknown_variables

    settings = load_settings(vars(make_parser().parse_args(arguments)))
    configure_logging(settings.log_level, settings.log_format)
    for line in unknown_variables():
        logger.warning("%s", line)
    with bind(settings.host, settings.port) as listener:
        core = settings.core or ensure_default_core()
        if early is not None:
            early.raise_if_damaged(core)
        loading = start_loading(settings.engine_config(core), early)
        logger.info("listening on %s, loading %s", url_of(listener), core)
        return _serve(settings, loading, listener, started)


def _serve(
    settings: "Settings", loading: Future[Loaded], listener: socket.socket, started: float
) -> int:
    try:
        code, error = _host(settings, loading, listener, started)
    except KeyboardInterrupt:
        code, error = INTERRUPTED, None
    except SystemExit:  # SIGTERM before anything was served
        code, error = 0, None
    if error is not None:
        raise error
    if not loading.done():  # stopped while loading: native code in the thread cannot be called off
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    """End a start that is under way; an export that it waits for is ended, too."""
    raise SystemExit(0)


def _host(
    settings: "Settings", loading: Future[Loaded], listener: socket.socket, started: float
) -> tuple[int, BaseException | None]:
    """Run the application; the exit code, and the error that loading ended with."""
    # Imported here, while the engine loads in its thread: the web stack is most of a start, and
    # nothing is served where loading has failed meanwhile.
    for module in WEB_STACK:
        importlib.import_module(module)
        if loading.done() and (error := loading.exception()) is not None:
            return 1, error
    from app.main import create_app
    from app.server import Runner
    from app.service import Service

    service = Service()
    runner = Runner(listener, service, settings.drain_seconds)

    def on_loaded(service: Service) -> None:
        gc.freeze()  # what a start made lives as long as the process: never look at it again
        gc.enable()
        if service.error is not None:
            runner.stop()
        else:
            announce(url_of(listener), service, settings, time.perf_counter() - started)

    app = create_app(settings.server_config(), loading, service=service, on_loaded=on_loaded)
    code = runner.run(app)
    gc.unfreeze()  # let the end of the process release the device in order
    return code, service.error


def announce(url: str, service: "Service", settings: "Settings", seconds: float) -> None:
    """Say where the server is and how to try it; one log record when logs are JSON."""
    context = service.context
    name = context.model_names[0]
    if settings.log_format == "json":
        logger.info("ready", extra={"url": url, "model": name, "seconds": round(seconds, 3)})
        return
    body: dict[str, object] = {"model": name}
    if context.text.chat_template is not None:
        route, body["messages"] = "chat/completions", [{"role": "user", "content": "Hello!"}]
    else:
        route, body["prompt"] = "completions", "Hello"
    key = ' -H "Authorization: Bearer $KEY"' if settings.api_keys else ""
    print(f"flare: {name} is served on {url} (ready in {seconds:.2f} s)")
    print(
        f"try: curl {url}/v1/{route}{key} -H 'Content-Type: application/json' "
        f"-d '{json.dumps(body)}'",
        flush=True,
    )
