"""``flare verify``: check a core without running it."""

from pathlib import Path

from app.commands.arguments import Parser
from engine.verification import Check, verify_core

DESCRIPTION = """\
Check everything that can be known of a core without running it: digests of every file and tensor,
the catalog, the programs, one numerics class for each weight and role (what makes answers
independent of the batch), what each selection would keep, and that all stored values are finite.
The first fault ends the check with exit code 3."""
EXAMPLES = "  flare verify my.core"


def main(arguments: list[str]) -> int:
    """Print one line for each check that passes. Raises CoreError at the first fault."""
    parser = Parser("verify", DESCRIPTION, EXAMPLES)
    parser.add_argument("core", metavar="CORE", type=Path, help="path of the core")
    given = parser.parse_args(arguments)
    verify_core(given.core, _show)
    print(f"flare: {given.core} is sound")
    return 0


def _show(check: Check) -> None:
    print(f"ok  {check.name:<11}{check.found} ({check.seconds:.2f} s)", flush=True)
