"""Opens the device that a rank's plan names."""

import logging

from engine.config import Isa
from engine.device.base import Device
from engine.errors import DeviceError
from engine.ranks.local import DeviceSpec
from engine.ranks.threads import default_threads

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
    from engine.device.cpu.device import CpuDevice

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
