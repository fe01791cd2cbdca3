"""The captured graphs of a core that is being exported, instantiated on this machine."""

from collections.abc import Mapping

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from engine.core.schema import Graph, ModelSpec
from engine.device.base import Device, Executable, capacity_of
from engine.device.cpu.device import CpuDevice
from engine.device.cpu.threads import default_threads
from engine.export.catalog import Capture


class ExportReplays(Struct, frozen=True):
    """A device and its executables by graph id. isa: the path that runs."""

    device: Device
    executables: Mapping[str, Executable]
    graphs: tuple[Graph, ...]
    threads: int
    isa: str


def instantiate_capture(
    capture: Capture,
    model: ModelSpec,
    weights: Mapping[str, NDArray[np.generic]],
    num_blocks: int,
    max_blocks: int,
    sampler_slots: int = 1,
    threads: int | None = None,
) -> ExportReplays:
    """Open the CPU device with all captured graphs.

    weights: rank 0's tensors by name. num_blocks: of the cache, the null block included;
    max_blocks: of one sequence. Raises DeviceError, for example when memory is short.
    """
    count = threads or default_threads()
    device = CpuDevice(
        model,
        capacity_of(capture.graphs),
        weights,
        workspace_bytes=max(graph.workspace_bytes for graph in capture.graphs),
        num_blocks=num_blocks,
        max_blocks=max_blocks,
        sampler_slots=sampler_slots,
        threads=count,
    )
    executables = {
        graph.id: device.instantiate(graph, capture.programs[graph.program])
        for graph in capture.graphs
    }
    return ExportReplays(device, executables, capture.graphs, count, device.isa)
