"""The options that all soaks have."""

import argparse
import math
from pathlib import Path


def parser(about: str | None, count: int, of: str) -> argparse.ArgumentParser:
    """Return the parser of a soak of ``count`` runs by default; ``of``: what is counted."""
    made = argparse.ArgumentParser(description=about)
    made.add_argument("core", type=Path, nargs="?")
    made.add_argument("--count", type=int, default=count, help=f"{of} (default: {count})")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--seconds", type=float, default=math.inf, help="stop after so long")
    return made


def add_first(made: argparse.ArgumentParser, of: str) -> None:
    """Add the option that goes on where another run ended."""
    made.add_argument("--first", type=int, default=0, help=f"number of the first {of}")
