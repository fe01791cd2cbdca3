"""What all subcommands share of argument parsing."""

import argparse
from difflib import get_close_matches
from typing import Any, NoReturn

from engine.errors import SettingsError


class Parser(argparse.ArgumentParser):
    """Raises SettingsError (exit code 2) instead of printing usage; options are never shortened."""

    def __init__(self, command: str, description: str, examples: str) -> None:
        super().__init__(
            prog=f"flare {command}",
            description=description,
            epilog=f"examples:\n{examples}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            argument_default=argparse.SUPPRESS,
        )

    def error(self, message: str) -> NoReturn:
        hint = f"{self.prog} --help lists the options"
        _, _, unknown = message.partition("unrecognized arguments: ")
        word = unknown.split()[0].partition("=")[0] if unknown else ""
        if close := get_close_matches(word, self._option_string_actions, n=1):
            hint = f"did you mean {close[0]}? {hint}"
        raise SettingsError(message, hint)


def add_mixed_prefill(group: Any, text: str) -> None:
    """The tri-state pair; absent from the parsed arguments when neither flag is given."""
    group.add_argument("--mixed-prefill", action=argparse.BooleanOptionalAction, help=text)
