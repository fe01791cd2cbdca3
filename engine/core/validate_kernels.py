"""Validation of the kernels table and of what a core says its machine must have."""

from engine.core.errors import KernelInvalidError, TargetUnknownError
from engine.core.schema import DeviceName, Kernel, Manifest
from engine.core.targets import INSTRUCTION_SETS, is_target, kernel_id
from engine.ir.ops import OPS
from engine.kernels.layouts import LAYOUTS


def validate_kernels(manifest: Manifest) -> None:
    """Check names, parameters and requirements. Raises KernelInvalidError or TargetUnknownError."""
    identity = manifest.identity
    _check_targets(identity.target, identity.device, "identity.target")
    for kernel in manifest.catalog.kernels:
        where = f"kernels.{kernel.id}"
        _check_names(kernel, where)
        _check_targets(kernel.requires, kernel.device, f"{where}.requires")


def _check_names(kernel: Kernel, where: str) -> None:
    if kernel.op not in OPS:
        raise KernelInvalidError(f"{where}.op: expected one of {', '.join(OPS)}, found {kernel.op}")
    if kernel.variant != kernel.op and not kernel.variant.startswith(f"{kernel.op}."):
        raise KernelInvalidError(
            f"{where}.variant: expected {kernel.op} or {kernel.op}.NAME, found {kernel.variant!r}"
        )
    layout = kernel.parameters.get("layout")
    if layout is not None and layout not in LAYOUTS:
        raise KernelInvalidError(
            f"{where}.parameters.layout: expected one of {', '.join(LAYOUTS)}, found {layout!r}"
        )
    expected = kernel_id(kernel.device, kernel.variant, kernel.parameters)
    if kernel.id != expected:
        raise KernelInvalidError(
            f"{where}.variant: expected the id {expected} for variant {kernel.variant!r} with its "
            f"parameters, found {kernel.id}"
        )


def _check_targets(names: tuple[str, ...], device: DeviceName, where: str) -> None:
    known = ", ".join(INSTRUCTION_SETS) if device == "cpu" else "a compute capability as in sm_90"
    for name in names:
        if not is_target(device, name):
            raise TargetUnknownError(f"{where}: expected {known}, found {name!r}")
