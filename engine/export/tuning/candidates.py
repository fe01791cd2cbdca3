"""Which variants of a kernel are tried: the heuristic first, then parameters."""

from collections.abc import Iterable, Mapping
from itertools import product

from engine.core.schema import Tuning
from engine.export.tuning.classes import Role
from engine.ir.program import Launch
from engine.kernels.parameters import variant_id

Values = Mapping[str, tuple[int, ...]]
"""Parameter -> values to try, in the order of trying."""
LONG_RUN = ("bf16_g32", "int12_g32")
"""The classes whose generated rows walk several panels together."""
BALANCED: Mapping[str, Values] = {
    "linear": {"pieces": (4, 12, 24)},
    "paged_attention": {"claim": (2, 4)},
}
AUDIT: Mapping[str, Values] = {
    "linear": {"pieces": (2, 4, 8, 12, 24, 256)},
    "paged_attention": {"claim": (2, 3, 4, 8)},
    "rms_norm": {"pieces": (1, 2, 8, 16)},
    "rope_store_kv": {"pieces": (1, 2, 8, 16)},
    "embed": {"pieces": (1, 2, 8)},
    "gather_rows": {"pieces": (1, 2, 8)},
}
RUNS = (2, 4)
"""Values of a linear's ``run``, where all rows are generated ones of a ``LONG_RUN`` class."""
MOST_OWN = 8
"""Most rows that threads convert for themselves; ``own`` 1 lets them share that work instead."""


def candidates(launch: Launch, role: Role, rows: int, profile: Tuning) -> tuple[str, ...]:
    """Return the kernel ids to try for so many rows of a role; the first is the launch's own.

    ``balanced`` changes one parameter at a time, ``audit`` tries all combinations.
    """
    if profile == "fast":
        return (launch.kernel,)
    values = dict((AUDIT if profile == "audit" else BALANCED).get(launch.op, {}))
    if role == "generated" and launch.attrs.get("generated_class") in LONG_RUN:
        values["run"] = RUNS
    if launch.op == "linear" and role != "mixed" and 1 < rows <= MOST_OWN:
        values["own"] = (1,)
    cuts = _all(values) if profile == "audit" else _one_at_a_time(values)
    return (launch.kernel, *(variant_id(launch.kernel, cut) for cut in cuts))


def _one_at_a_time(values: Values) -> Iterable[dict[str, int]]:
    for name, choices in values.items():
        for choice in choices:
            yield {name: choice}


def _all(values: Values) -> Iterable[dict[str, int]]:
    """Every combination but the empty one; an absent parameter is one of its values."""
    names = list(values)
    for choice in product(*((None, *values[name]) for name in names)):
        cut = {name: value for name, value in zip(names, choice, strict=True) if value is not None}
        if cut:
            yield cut
