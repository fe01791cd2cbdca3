"""Where settings come from: reads them all, names what is wrong or unknown."""

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dotenv import dotenv_values
from pydantic import ValidationError

from app.settings import PREFIX, Settings
from engine.errors import SettingsError

DOTENV = ".env"
TEST_PREFIX = "FLARE_TEST_"
"""Variables of the test suite; no setting begins so."""


def load_settings(flags: Mapping[str, Any]) -> Settings:
    """Merge flags, variables, .env and defaults.

    ``flags`` holds what the command line gave, by field name. Raises SettingsError that names
    the flag or variable at fault.
    """
    try:
        return Settings(**dict(flags))
    except ValidationError as exc:
        raise _explain(exc, flags) from exc
    except (OSError, UnicodeDecodeError) as exc:
        raise SettingsError(f"cannot read {DOTENV}: {exc}") from exc


def unknown_variables() -> list[str]:
    """One line for each FLARE_ variable (environment or .env) that is no setting: a likely typo."""
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    found = dict.fromkeys([*os.environ, *_dotenv()])
    return [
        _guess(name, known)
        for name in found
        if name.upper().startswith(PREFIX)
        and not name.upper().startswith(TEST_PREFIX)
        and name.upper() not in known
    ]


def _guess(name: str, known: set[str]) -> str:
    close = difflib.get_close_matches(name.upper(), sorted(known), n=1)
    return f"{name} is not a setting" + (f"; did you mean {close[0]}?" if close else "")


def _dotenv() -> dict[str, str | None]:
    return dotenv_values(DOTENV) if Path(DOTENV).is_file() else {}


def _explain(exc: ValidationError, flags: Mapping[str, object]) -> SettingsError:
    """The first fault, in the words of the place where the value stands."""
    error = exc.errors()[0]
    name = str(error["loc"][0])
    hint = None
    if name in flags:
        title = "CORE" if name == "core" else "--" + name.replace("_", "-")
    else:
        title = PREFIX + name.upper()
        if not any(key.upper() == title for key in os.environ):
            hint = f"it stands in {Path(DOTENV).resolve()}"
    return SettingsError(f"{title} {_sentence(error)}", hint)


def _sentence(error: Mapping[str, Any]) -> str:
    if error["type"] == "literal_error":
        words = error["ctx"]["expected"].replace("'", "")
        return f"must be {words}, not {error['input']!r}"
    return str(error["msg"]).removeprefix("Value error, ")
