"""The ``flare`` command: finds the subcommand, and turns errors into one line and an exit code."""

import gc
import importlib
import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import cast

from engine import __version__
from engine.errors import INTERRUPTED, FlareError, SelectionError, SettingsError

COMMANDS = {
    "export": "make a core from a checkpoint: slow work, done once",
    "run": "serve a core over the OpenAI API",
    "inspect": "show what a core holds, and what a selection would keep",
    "verify": "check a core: digests, catalog, programs, storage",
    "compare": "measure both graph families of a core, and say which to serve",
    "bench": "send a load to a running server and measure it",
}
USAGE = f"""\
usage: flare COMMAND [OPTIONS]

Serve language models from an ahead-of-time exported core.

commands:
{chr(10).join(f"  {name:<9}{text}" for name, text in COMMANDS.items())}

options:
  --help     this text; 'flare COMMAND --help' for a command's own
  --version  the version

examples:
  flare run                                   serve the default model
  flare export ./Llama-3.2-1B --output l.core make a core
  flare run l.core --port 9000                serve it
  flare run l.core --no-mixed-prefill         the same bytes, the other graph family
  flare compare l.core --workload chat        which family suits that traffic
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code (docs/operations.md)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(arguments)
    except KeyboardInterrupt:
        print("flare: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has gone, as in ``flare inspect | head``
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as exc:
        return report(exc)


def report(exc: BaseException) -> int:
    """Print an error for people on standard error; its exit code."""
    if _debug():
        sys.excepthook(type(exc), exc, exc.__traceback__)
    hint: str | None = "FLARE_LOG_LEVEL=debug shows where it happened"
    message, code = f"unexpected {type(exc).__name__}: {exc}", 1
    if isinstance(exc, FlareError):
        message, hint, code = str(exc), exc.hint, exc.exit_code
    print(f"flare: error: {' '.join(message.split())}", file=sys.stderr)
    if isinstance(exc, SelectionError):
        for graph, reason in exc.reasons.items():
            if f"{graph}: {reason}" not in message:
                print(f"  {graph}: {reason}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)
    return code


def _debug() -> bool:
    """By the variable, or by the settings of ``flare run``, which also know .env and the flag."""
    variable = os.environ.get("FLARE_LOG_LEVEL", "").strip().lower() == "debug"
    return variable or logging.getLogger("flare").getEffectiveLevel() <= logging.DEBUG


def _dispatch(arguments: list[str]) -> int:
    name = arguments[0] if arguments else "--help"
    if name in {"--help", "-h", "help"}:
        print(USAGE, end="")
        return 0
    if name in {"--version", "-V"}:
        print(f"flare {__version__}")
        return 0
    if name not in COMMANDS:
        raise SettingsError(f"there is no command {name!r}", f"one of: {', '.join(COMMANDS)}")
    gc.disable()  # imports make many objects and no garbage: looking for it is a tenth of a start
    # pydantic looks for plugins in the metadata of every installed package: another tenth
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    module = importlib.import_module(f"app.commands.{name}")
    gc.enable()
    command = cast(Callable[[list[str]], int], module.main)
    return command(arguments[1:])


if __name__ == "__main__":
    sys.exit(main())
