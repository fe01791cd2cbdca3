"""Records what every captured graph computes, so that a core can be checked wherever it goes."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from engine.core.schema import Canary, Limits, ModelSpec
from engine.device.canaries import CanaryReplays, canary_graphs, rule_of
from engine.errors import DeviceError
from engine.export.catalog import Capture
from engine.export.progress import ExportProgress
from engine.export.replays import instantiate_capture


def record_canaries(
    capture: Capture,
    model: ModelSpec,
    limits: Limits,
    weights: Mapping[str, NDArray[np.generic]],
    shown: ExportProgress,
) -> tuple[Canary, ...]:
    """Replay every graph once. None, and a note, where this machine cannot run the graphs."""
    graphs = canary_graphs(capture.graphs)
    rule, blocks = rule_of(model, limits, graphs)
    shown.step("Recording canaries", len(graphs))
    try:
        replays = instantiate_capture(capture, model, weights, blocks + 1, 1)
    except DeviceError as error:
        shown.note(f"no canaries are recorded: {error}")
        return ()
    size = model.kv.block_size
    canaries = []
    for canary in CanaryReplays(rule, graphs, replays.device, replays.executables, size).record():
        canaries.append(canary)
        shown.advance()
    return tuple(canaries)
