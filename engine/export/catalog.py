"""From a model definition to catalog graphs: record once, place per capacity, note the kernels."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from msgspec import Struct

from engine.core.schema import Graph, Kernel, ModelSpec, TuningRecord
from engine.export.capture import Recorder, WeightShape
from engine.export.graphs import LADDER, GraphShape
from engine.export.memory_plan import plan_memory
from engine.export.tuning.records import TuningTable, choose_cpu_kernel
from engine.ir.program import Program, Space
from engine.ir.verify import verify_programs
from engine.kernels.cpu import cpu_kernels
from engine.models.llama import record_llama

ARCHITECTURES: Mapping[str, Callable[[Recorder, ModelSpec], Program]] = MappingProxyType(
    {"llama": record_llama}
)
"""Model definitions by architecture."""


class Capture(Struct, frozen=True):
    """The captured part of a catalog; programs by name (a graph's program has the graph's id)."""

    graphs: tuple[Graph, ...]
    kernels: tuple[Kernel, ...]
    tuning: tuple[TuningRecord, ...]
    programs: Mapping[str, Program]


def capture_graphs(
    model: ModelSpec,
    weights: Mapping[str, WeightShape],
    shapes: Sequence[GraphShape],
    advance: Callable[[], None],
) -> Capture:
    """Capture every graph. The definition is recorded once: its launches do not depend on the
    capacity, which sizes the symbolic dimensions and so the arena. ``advance`` is called per graph.
    """
    body = ARCHITECTURES[model.architecture](Recorder(weights, model.kv, choose_cpu_kernel), model)
    programs = {shape.id: plan_memory(body, shape.domain, shape.id) for shape in shapes}
    verify_programs(programs.values())
    table = TuningTable()
    graphs = []
    for shape in shapes:
        graphs.append(_graph(shape, programs[shape.id], table))
        advance()
    kernels = cpu_kernels(kernel for graph in graphs for kernel in graph.kernels)
    return Capture(tuple(graphs), kernels, table.records, programs)


def _graph(shape: GraphShape, program: Program, table: TuningTable) -> Graph:
    """Derive what a graph needs from its program."""
    kernels = dict.fromkeys(launch.kernel for launch in program.launches)
    layouts = (b.name for b in program.buffers.values() if b.space is Space.WEIGHT)
    return Graph(
        id=shape.id,
        kind=shape.kind,
        family=shape.family,
        domain=shape.domain,
        program=program.name,
        kernels=tuple(kernels),
        tuning=table.add(shape.id, program),
        layouts=tuple(layouts),
        workspace_bytes=program.arena_bytes,
        reason=LADDER,
    )
