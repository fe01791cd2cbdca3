"""What is compared: legs, each a way to start the same core."""

from collections.abc import Callable
from contextlib import AbstractContextManager

from msgspec import Struct


class Leg(Struct, frozen=True):
    """One way to serve the core. ``arguments``: of ``flare run``; ``variables``: added to its
    environment. ``beside``: entered with the server's process id while it is measured.
    """

    name: str
    arguments: tuple[str, ...]
    variables: tuple[tuple[str, str], ...] = ()
    beside: Callable[[int], AbstractContextManager[object]] | None = None


SEPARATE = Leg("separate", ("--no-mixed-prefill",))
MIXED = Leg("mixed", ("--mixed-prefill",))
FAMILIES = (SEPARATE, MIXED)
"""The first is the base: differences are of the second from the first, as a share of the first."""


def switchable(key: str) -> Leg:
    """The separate family on a server that could switch to mixed: it holds room for either.

    key: the admin key, without which no server can switch.
    """
    return Leg("separate, live switch", SEPARATE.arguments, (("FLARE_ADMIN_KEY", key),))
