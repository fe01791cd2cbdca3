"""The checks of ``flare verify``: digests, catalog, programs, numerics, selections, values, and
a canary for every graph."""

from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from engine.canary import CanaryResult, replay_canaries
from engine.core.digests import bytes_digest
from engine.core.errors import (
    CanaryError,
    DigestMismatchError,
    RowInvarianceError,
    StorageInvalidError,
)
from engine.core.reader import Core, open_core
from engine.core.schema import StorageTensor
from engine.core.validate import validate
from engine.core.validate_programs import numerics_classes
from engine.errors import SelectionError
from engine.inspection import core_limits
from engine.kernels.layouts import PANEL, unpack
from engine.load.select import select
from engine.ranks.local import OpenDevice

_PANELS_AT_ONCE = 256
_BF16_EXPONENT = 0x7F80


Fault = Literal["alone", "stored"]


class Check(Struct, frozen=True):
    """One check: what was looked at, what was found, and seconds. Only canaries may not pass.

    fault: what a canary did not have as expected.
    """

    name: str
    found: str
    seconds: float
    fault: Fault | None = None

    @property
    def passed(self) -> bool:
        return self.fault is None


def verify_core(
    path: Path,
    report: Callable[[Check], None] = lambda _: None,
    open_with: OpenDevice | None = None,
) -> list[Check]:
    """Check everything that can be known of a core, and replay each of its graphs.

    ``report`` is called after each check; ``open_with`` replaces the device (tests). Raises the
    first fault as a CoreError, one of a canary when all graphs were replayed; DeviceError when
    this machine's device cannot take the core.
    """
    checks: list[Check] = []
    with open_core(path) as core:
        started = perf_counter()
        for name, found, fault in _results(core, open_with):
            now = perf_counter()
            checks.append(Check(name, found, now - started, fault))
            started = now
            report(checks[-1])
    _raise_fault(checks)
    return checks


def _raise_fault(checks: list[Check]) -> None:
    """Raise the worst fault of the canaries: what changes with the batch, then what changed."""
    failed = {
        fault: ", ".join(check.name for check in checks if check.fault == fault)
        for fault in ("alone", "stored")
    }
    if failed["alone"]:
        raise RowInvarianceError(
            f"graphs {failed['alone']}: expected the same bits for a row alone and in a batch",
            hint="serve with another selection, or export the core again; please report it",
        )
    if failed["stored"]:
        raise CanaryError(
            f"canaries of {failed['stored']}: expected the bits that the core was exported with, "
            "found others",
            hint="this version or machine computes differently: export the core again, and report "
            "it unless the versions differ",
        )


def _results(core: Core, open_with: OpenDevice | None) -> Iterator[tuple[str, str, Fault | None]]:
    for name, run in _CHECKS:
        yield name, run(core), None
    device = core.manifest.identity.device
    if device != "cpu" and open_with is None:
        yield "canaries", f"not replayed: the core is for {device}", None
        return
    for result in replay_canaries(core, open_with):
        yield result.found.graph, *_canary(result)


def _canary(result: CanaryResult) -> tuple[str, Fault | None]:
    """What a canary found, and its fault."""
    if result.wrong:
        return f"{result.wrong} of {result.sequences} sequences have other bits than alone", "alone"
    found = f"{result.sequences} sequences in one launch, the bits of each alone"
    stored = result.stored
    if stored is None:
        return f"{found}; none are stored", None
    if result.as_stored:
        return f"{found} and as exported, {stored.digest[:16]}", None
    changed = sum(a != b for a, b in zip(result.found.argmax, stored.argmax, strict=False))
    return (
        f"expected digest {stored.digest[:16]}, found {result.found.digest[:16]}; "
        f"{changed} of {result.sequences} likeliest tokens differ"
    ), "stored"


def _digests(core: Core) -> str:
    core.verify_storage()
    for tensor in core.manifest.catalog.storage:
        found = bytes_digest(_bytes(core, tensor).data)
        if found != tensor.digest:
            raise DigestMismatchError(
                f"storage.{tensor.name}.digest: expected {tensor.digest}, found {found}"
            )
    files, tensors = len(core.manifest.sections), len(core.manifest.catalog.storage)
    return f"{files} files and {tensors} tensors as exported, root {core.digest[:16]}"


def _catalog(core: Core) -> str:
    validate(core.manifest)
    catalog = core.manifest.catalog
    return (
        f"{len(catalog.graphs)} graphs, {len(catalog.kernels)} kernels, "
        f"{len(catalog.tuning)} tuning records, all references resolve, limits covered"
    )


def _programs(core: Core) -> str:
    programs = core.manifest.catalog.programs.values()
    launches = sum(len(program.launches) for program in programs)
    return f"{len(programs)} programs with {launches} launches follow the IR"


def _numerics(core: Core) -> str:
    classes = numerics_classes(core.manifest.catalog)
    names = sorted(set(classes.values()))
    return (
        f"one class per weight and role over all graphs ({len(classes)} pairs: {', '.join(names)})"
    )


def _selections(core: Core) -> str:
    manifest = core.manifest
    results = []
    for requested, name in (
        (None, "default"),
        (False, "no mixed prefill"),
        (True, "mixed prefill"),
    ):
        try:
            selection = select(
                manifest.catalog, manifest.default_mixed, requested, core_limits(manifest)
            )
            results.append(f"{name}: {selection.family}, {len(selection.retained)} graphs")
        except SelectionError as error:
            if not requested:
                raise
            results.append(f"{name}: refused ({error})")
    return "; ".join(results)


def _values(core: Core) -> str:
    """Check that no stored weight, scale or minimum is infinite or not a number."""
    storage = core.manifest.catalog.storage
    for tensor in storage:
        if not _finite(core, tensor):
            raise StorageInvalidError(f"storage.{tensor.name}: expected finite values alone")
    return f"{sum(tensor.size for tensor in storage)} bytes of weights, all values finite"


def _bytes(core: Core, tensor: StorageTensor) -> NDArray[np.uint8]:
    return core.tensor(tensor.name, tensor.rank).reshape(-1).view(np.uint8)


def _finite(core: Core, tensor: StorageTensor) -> bool:
    if tensor.n:
        return _finite_packed(_bytes(core, tensor), tensor)
    values = core.tensor(tensor.name, tensor.rank)
    if tensor.dtype == "BF16":
        return _finite_bf16(values)
    return values.dtype.kind != "f" or bool(np.isfinite(values).all())


def _finite_packed(data: NDArray[np.uint8], tensor: StorageTensor) -> bool:
    """Unpack some panels at a time, so that a large weight needs little memory."""
    panels = -(-tensor.n // PANEL)
    step = len(data) // panels * _PANELS_AT_ONCE
    for start in range(0, len(data), step):
        part = data[start : start + step]
        rows = len(part) * panels // len(data) * PANEL
        codes, *factors = unpack(tensor.layout, part, rows, tensor.k)
        if codes.dtype == np.uint16 and not _finite_bf16(codes):
            return False
        if not all(factor is None or np.isfinite(factor).all() for factor in factors):
            return False
    return True


def _finite_bf16(bits: NDArray[np.generic]) -> bool:
    return not bool(((bits.view(np.uint16) & _BF16_EXPONENT) == _BF16_EXPONENT).any())


_CHECKS: tuple[tuple[str, Callable[[Core], str]], ...] = (
    ("digests", _digests),
    ("catalog", _catalog),
    ("programs", _programs),
    ("numerics", _numerics),
    ("selections", _selections),
    ("values", _values),
)
