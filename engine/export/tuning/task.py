"""What is tuned, and whom to tell of it."""

from collections.abc import Callable

from msgspec import Struct

from engine.core.schema import Tuning
from engine.export.catalog import Capture


class Task(Struct, frozen=True):
    """What to tune: a capture with heuristic kernels, the profile, the model's longest sequence.

    layout_budget: bytes that second layouts of weights may add to the core.
    """

    capture: Capture
    profile: Tuning
    max_model_len: int
    layout_budget: int = 0


class Told(Struct, frozen=True):
    """Whom to tell: of each part of the work, with its title and units, and of each unit done."""

    step: Callable[[str, int], None]
    advance: Callable[[], None]
