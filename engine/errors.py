"""Errors with a meaning for users: each maps to one exit code or one HTTP answer."""

INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 and the number of SIGINT, as shells have it."""

_LONGEST = 2000


class FlareError(Exception):
    """Base of all errors that a person can act on.

    ``hint`` says what to do next; where the place that raises knows no better, it is the class's.
    Messages quote what files hold: what does not print is escaped, and a long message is cut, so
    that none can upset a terminal or a log.
    """

    exit_code = 1
    lines = False
    usual_hint: str | None = None

    def __init__(self, message: str, hint: str | None = None) -> None:
        message = printable(message, "\n" if self.lines else "")
        super().__init__(message if len(message) <= _LONGEST else message[:_LONGEST] + "...")
        self.hint = hint or self.usual_hint


def printable(text: str, kept: str = "") -> str:
    """Return a text with every character escaped that does not print, but for those ``kept``.

    For what files hold and people read: no control sequence of a name reaches a terminal.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in kept else ascii(c)[1:-1] for c in text)


class SettingsError(FlareError):
    """A setting or an argument is wrong; the message names it."""

    exit_code = 2
    usual_hint = "flare COMMAND --help says what each setting takes"


class CoreError(FlareError):
    """The core is invalid, corrupt or incompatible; says which key, expected and found."""

    exit_code = 3
    usual_hint = "the core was changed or damaged after export; copy or export it again"


class CheckpointError(FlareError):
    """The checkpoint to export is missing, damaged or not supported."""

    exit_code = 2
    usual_hint = "see flare export --help and docs/operations.md for the models that are taken"


class SelectionError(FlareError):
    """The requested graph family cannot be served; ``reasons`` maps graph id to why."""

    exit_code = 4

    def __init__(
        self, message: str, reasons: dict[str, str] | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, hint)
        self.reasons = dict(reasons or {})


class DeviceError(FlareError):
    """Device, memory or rank failure."""

    exit_code = 5
    usual_hint = "FLARE_LOG_LEVEL=debug shows where it happened"


class RequestError(FlareError):
    """A request cannot be served; the server goes on."""

    lines = True
    code: str | None = None


class GrammarError(RequestError):
    """A grammar is not valid, not supported or too large; ``param`` names the request field."""

    code = "invalid_grammar"

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ContextLengthError(RequestError):
    """Prompt and completion do not fit the context or the KV pool."""

    code = "context_length_exceeded"


class QueueFullError(RequestError):
    """The bounded queue is full; try again later."""

    code = "queue_full"


class LiveSwitchOffError(RequestError):
    """The engine was loaded without the means to change its selection."""

    code = "live_switch_off"


class EngineUnavailableError(RequestError):
    """The engine is loading, draining or broken."""

    code = "engine_unavailable"
