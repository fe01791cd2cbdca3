"""``flare verify``: check a core, and replay each of its graphs once."""

from pathlib import Path

from app.commands.arguments import Parser
from engine.errors import printable
from engine.verification import Check, verify_core

DESCRIPTION = """\
Check everything that can be known of a core: digests of every file and tensor, the catalog, the
programs, one numerics class for each weight and role (what makes answers independent of the batch),
what each selection would keep, and that all stored values are finite. Then replay each graph on a
full batch: every row must have the bits that it has alone, on the smallest separate graph, and the
bits of the graph's canary, which the exporter recorded: they are the same on every processor.
The first fault ends the check with exit code 3; a graph that fails is named FAILED."""
EXAMPLES = "  flare verify my.core"


def main(arguments: list[str]) -> int:
    """Print one line for each check. Raises CoreError for a fault."""
    parser = Parser("verify", DESCRIPTION, EXAMPLES)
    parser.add_argument("core", metavar="CORE", type=Path, help="path of the core")
    given = parser.parse_args(arguments)
    verify_core(given.core, _show)
    print(f"flare: {given.core} is sound")
    return 0


def _show(check: Check) -> None:
    state = "ok" if check.passed else "FAILED"
    found = printable(f"{check.name:<13}{check.found}")
    print(f"{state:<4}{found} ({check.seconds:.2f} s)", flush=True)
