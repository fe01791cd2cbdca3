"""Load the engine and the text assets in a thread, beside the import of the web stack."""

from concurrent.futures import Future
from dataclasses import dataclass
from threading import Thread
from typing import TYPE_CHECKING

from engine.config import EngineConfig

if TYPE_CHECKING:  # the loading thread imports these, beside the main thread's own imports
    from engine.client import Engine
    from engine.text.assets import TextAssets


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a start needs before it can serve."""

    engine: "Engine"
    text: "TextAssets"


def start_loading(config: EngineConfig) -> "Future[Loaded]":
    """Begin to load in a thread that does not hold up the end of the process."""
    future: Future[Loaded] = Future()
    Thread(target=_run, args=(config, future), name="flare-load", daemon=True).start()
    return future


def _run(config: EngineConfig, future: "Future[Loaded]") -> None:
    future.set_running_or_notify_cancel()
    try:
        future.set_result(_load(config))
    except BaseException as exc:  # handed to whoever waits for the future
        future.set_exception(exc)


def _load(config: EngineConfig) -> Loaded:
    from engine.factory import load_engine
    from engine.text.assets import load_text

    return Loaded(load_engine(config), load_text(config.core / "text"))
