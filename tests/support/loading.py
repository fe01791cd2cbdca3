"""Load the engine on the reference device, for tests that need a real model but no native code."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.client import Engine
from engine.config import EngineConfig
from engine.device.reference.device import ReferenceDevice
from engine.factory import load_engine
from engine.ranks.local import DeviceSpec


class SeenDevice(ReferenceDevice):
    """The reference device, which also remembers which graphs were instantiated."""

    def __init__(self, spec: DeviceSpec) -> None:
        super().__init__(
            spec.core.manifest.model,
            spec.capacity,
            spec.weights,
            num_blocks=spec.num_blocks,
            max_blocks=spec.max_blocks,
            sampler_slots=spec.plan.max_num_seqs,
        )
        self.spec = spec
        self.instantiated: list[str] = []

    def instantiate(self, graph: Any, program: Any) -> Any:
        self.instantiated.append(graph.id)
        return super().instantiate(graph, program)

    def scrub(self, blocks: Sequence[int]) -> None:
        raise AssertionError("a reference model gave numbers that are not finite")


def load(core: Path, **config: Any) -> tuple[Engine, SeenDevice]:
    """Load a core; return the engine, not started, and its device."""
    devices: list[SeenDevice] = []

    def open_device(spec: DeviceSpec) -> SeenDevice:
        devices.append(SeenDevice(spec))
        return devices[0]

    engine = load_engine(EngineConfig(core=core, **config), open_device)
    return engine, devices[0]
