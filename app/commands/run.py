"""``flare run``: serve a core. The engine loads beside the import of the web stack."""

import gc
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

from app.commands.default_core import ensure_default_core
from app.commands.run_options import make_parser
from app.listener import bind, url_of
from app.loading import Loaded, start_loading
from app.logging import configure_logging
from app.settings import Settings
from app.sources import load_settings, unknown_variables
from engine.errors import INTERRUPTED

if TYPE_CHECKING:
    from app.service import Service

logger = logging.getLogger("flare.server")


def main(arguments: list[str]) -> int:
    """Serve until a signal; the exit code. Raises the error that loading ended with."""
    started = time.perf_counter()
    gc.disable()  # until the server is ready
    signal.signal(signal.SIGTERM, _leave)  # until the server has handlers of its own
    settings = load_settings(vars(make_parser().parse_args(arguments)))
    configure_logging(settings.log_level, settings.log_format)
    for line in unknown_variables():
        logger.warning("%s", line)
    with bind(settings.host, settings.port) as listener:
        core = settings.core or ensure_default_core()
        return _serve(settings, core, listener, started)


def _serve(settings: Settings, core: Path, listener: socket.socket, started: float) -> int:
    loading = start_loading(settings.engine_config(core))
    logger.info("listening on %s, loading %s", url_of(listener), core)
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
    settings: Settings, loading: Future[Loaded], listener: socket.socket, started: float
) -> tuple[int, Exception | None]:
    """Run the application; the exit code, and the error that loading ended with."""
    # Imported here, while the engine loads in its thread: the web stack is most of a start.
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


def announce(url: str, service: "Service", settings: Settings, seconds: float) -> None:
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
