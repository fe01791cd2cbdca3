"""Load the engine and the text assets in a thread, beside the import of the web stack."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from threading import Thread
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from engine.ahead import EarlyHashing
from engine.config import EngineConfig

if TYPE_CHECKING:  # the loading thread imports these, beside the main thread's own imports
    from engine.client import Engine
    from engine.text.assets import TextAssets

T = TypeVar("T")


class Loaded(Struct, frozen=True):
    """What a start needs before it can serve."""

    engine: "Engine"
    text: "TextAssets"


def start_loading(config: EngineConfig, early: EarlyHashing | None = None) -> "Future[Loaded]":
    """Begin to load in a thread that does not hold up the end of the process.

    ``early`` hashes the core's storage already.
    """
    return _in_thread("flare-load", lambda: _load(config, early))


def _in_thread(name: str, call: Callable[[], T]) -> "Future[T]":
    future: Future[T] = Future()
    Thread(target=_run, args=(call, future), name=name, daemon=True).start()
    return future


def _run(call: Callable[[], T], future: "Future[T]") -> None:
    future.set_running_or_notify_cancel()
    try:
        future.set_result(call())
    except BaseException as exc:  # handed to whoever waits for the future
        future.set_exception(exc)


def _load(config: EngineConfig, early: EarlyHashing | None) -> Loaded:
    from engine.factory import load_engine
    from engine.text.assets import load_text

    text: list[Future[TextAssets]] = []

    def begin_text(files: Mapping[str, bytes]) -> None:  # parsed while the first replays run
        text.append(_in_thread("flare-text", lambda: load_text(files)))

    engine = load_engine(config, early=early, on_instantiated=begin_text)
    return Loaded(engine, text[0].result())
