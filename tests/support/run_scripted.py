"""``flare run`` in a process, with a scripted engine in the place of a loaded core.

``python -m tests.support.run_scripted LOAD_SECONDS DELAY ERROR ARGUMENT...``; DELAY: seconds per
replay; ERROR: an error class of engine.errors that loading ends with, or "-".
"""

import sys
import time
from concurrent.futures import Future
from threading import Thread
from unittest import mock

from app import cli
from app.loading import Loaded
from engine import errors
from engine.config import EngineConfig
from tests.support.application import byte_text
from tests.support.scripted import Behaviour, scripted_engine


def main() -> int:
    load_seconds, delay, error = float(sys.argv[1]), float(sys.argv[2]), sys.argv[3]

    def start_loading(config: EngineConfig, early: object) -> "Future[Loaded]":
        future: Future[Loaded] = Future()

        def load() -> None:
            future.set_running_or_notify_cancel()
            time.sleep(load_seconds)
            if error != "-":
                future.set_exception(getattr(errors, error)(f"{config.core} does not load"))
            else:
                parts = scripted_engine(Behaviour(delay=delay), max_model_len=4096, num_blocks=300)
                future.set_result(Loaded(parts.engine, byte_text()))

        Thread(target=load, daemon=True).start()
        return future

    with mock.patch("app.commands.run.start_loading", start_loading):
        return cli.main(["run", "some.core", "--port", "0", *sys.argv[4:]])


if __name__ == "__main__":
    sys.exit(main())
