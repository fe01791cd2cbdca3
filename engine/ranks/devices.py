"""Opens the device that a rank's plan names."""

import logging

from engine.config import Isa
from engine.core.targets import INSTRUCTION_SETS
from engine.device.base import Device
from engine.device.cpu.threads import default_threads
from engine.errors import DeviceError
from engine.ranks.local import DeviceSpec

logger = logging.getLogger("flare.engine")


def open_device(spec: DeviceSpec, threads: int | None, isa: Isa) -> Device:
    """Open the plan's device. threads: None takes the default; isa: the CPU path to force.

    Raises DeviceError when this machine or this installation has no such device.
    """
    if spec.plan.device != "cpu":
        raise DeviceError(
            f"the core targets {spec.plan.device}, which this installation cannot use",
            hint="export a core with --device cpu",
        )
    count = threads or default_threads()
    logger.info("cpu device with %d threads", count)
    return _open_cpu(spec, count, isa)


def _open_cpu(spec: DeviceSpec, threads: int, isa: Isa) -> Device:
    # Only CPU ranks need the native extension.
    from engine.device.cpu.device import CpuDevice, choose_isa

    check_targets(spec, choose_isa(isa))
    return CpuDevice(
        spec.core.manifest.model,
        spec.capacity,
        spec.weights,
        workspace_bytes=spec.workspace_bytes,
        num_blocks=spec.num_blocks,
        max_blocks=spec.max_blocks,
        sampler_slots=spec.plan.max_num_seqs,
        threads=threads,
        isa=isa,
    )


def check_targets(spec: DeviceSpec, isa: str) -> None:
    """Check what the core and its retained kernels need against the CPU path that will run.

    Raises DeviceError with the key, what was expected and what was found.
    """
    manifest = spec.core.manifest
    provided = INSTRUCTION_SETS[isa]
    _check_target("identity.target", manifest.identity.target, provided)
    retained = set(spec.plan.retained)
    used = {k for graph in manifest.catalog.graphs if graph.id in retained for k in graph.kernels}
    for kernel in manifest.catalog.kernels:
        if kernel.requires and kernel.id in used:
            _check_target(f"kernels.{kernel.id}.requires", kernel.requires, provided)


def _check_target(key: str, required: tuple[str, ...], provided: tuple[str, ...]) -> None:
    missing = [name for name in required if name not in provided]
    if missing:
        raise DeviceError(
            f"{key}: expected {', '.join(missing)}, found {', '.join(provided)} on this machine",
            hint="serve the core where it was tuned for, or export it again here",
        )
