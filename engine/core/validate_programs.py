"""Validation of the programs: against the IR, their graphs, the storage table and the model."""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from engine.core.errors import NumericsConflictError
from engine.core.schema import Catalog, Graph, Kernel, Manifest, StorageTensor
from engine.ir.program import Buffer, Launch, Program, Space
from engine.ir.verify import ProgramInvalidError, verify_programs
from engine.kernels.layouts import PANEL

_ROLES = ("prompt", "generated")
_DTYPES = {"f32": "F32", "u8": "U8", "i32": "I32"}


class _Tables(Struct, frozen=True):
    """What launches are checked against. tensors: rank 0's (the ranks agree)."""

    manifest: Manifest
    kernels: Mapping[str, Kernel]
    tensors: Mapping[str, StorageTensor]


class _Names(Struct, frozen=True):
    """The catalog entries that a body's launches name."""

    kernels: frozenset[str]
    weights: frozenset[str]


def validate_programs(manifest: Manifest) -> None:
    """Check every program. Raises ProgramInvalidError or NumericsConflictError.

    Launches that several programs share (one object) are looked at once.
    """
    catalog = manifest.catalog
    verify_programs(catalog.programs.values())
    tables = _Tables(
        manifest,
        {kernel.id: kernel for kernel in catalog.kernels},
        {tensor.name: tensor for tensor in catalog.storage if tensor.rank == 0},
    )
    names: dict[int, _Names] = {}
    classes: dict[tuple[str, str], tuple[str, str]] = {}
    for graph in catalog.graphs:
        program = catalog.programs[graph.program]
        key = id(program.launches)
        if key not in names:
            names[key] = _check_body(graph, program, tables, classes)
        _check_graph(graph, program, names[key])


def _check_graph(graph: Graph, program: Program, names: _Names) -> None:
    expected: tuple[tuple[str, Any, Any], ...] = (
        ("domain", program.domain, graph.domain),
        ("kernels", sorted(names.kernels), sorted(graph.kernels)),
        ("layouts", sorted(names.weights), sorted(graph.layouts)),
    )
    for key, wanted, found in expected:
        if wanted != found:
            raise ProgramInvalidError(
                f"graphs.{graph.id}.{key}: its program has {_difference(wanted, found)}"
            )
    if graph.workspace_bytes < program.arena_bytes:
        raise ProgramInvalidError(
            f"graphs.{graph.id}.workspace_bytes: expected at least the arena's "
            f"{program.arena_bytes}, found {graph.workspace_bytes}"
        )


def _difference(wanted: Any, found: Any) -> str:
    if not isinstance(wanted, list):
        return f"{wanted}, the graph says {found}"
    more, less = sorted(set(wanted) - set(found)), sorted(set(found) - set(wanted))
    return f"also {more[:3]}, and not {less[:3]}" if more or less else "each of them once"


def _check_body(
    graph: Graph,
    program: Program,
    tables: _Tables,
    classes: dict[tuple[str, str], tuple[str, str]],
) -> _Names:
    for index, launch in enumerate(program.launches):
        where = f"program {program.name}: launch {index} ({launch.op})"
        _check_kernel(launch, graph, tables, where)
        _check_model(launch, program, tables.manifest, where)
        _check_weights(launch, program, tables, where)
        if launch.op == "linear":
            weight = tables.tensors[launch.inputs[1]].weight
            _note_classes(launch, weight, classes, where)
    _check_output(program, tables.manifest.model.logits_width)
    weights = (b.name for b in program.buffers.values() if b.space is Space.WEIGHT)
    return _Names(frozenset(e.kernel for e in program.launches), frozenset(weights))


def _check_kernel(launch: Launch, graph: Graph, tables: _Tables, where: str) -> None:
    kernel = tables.kernels.get(launch.kernel)
    if kernel is None:
        raise ProgramInvalidError(f"{where}: kernel {launch.kernel!r} is not in the catalog")
    if kernel.op != launch.op or kernel.device != graph.device:
        raise ProgramInvalidError(
            f"{where}: kernel {kernel.id} computes {kernel.op} on {kernel.device}, "
            f"expected {launch.op} on {graph.device}"
        )
    if launch.op != "linear":
        return
    for role in ("prompt_class", "generated_class"):
        stated = getattr(kernel, role)
        if stated is not None and stated != launch.attrs[role]:
            raise NumericsConflictError(
                f"{where}: {role} {launch.attrs[role]}, its kernel {kernel.id} has {stated}"
            )


def _check_model(launch: Launch, program: Program, manifest: Manifest, where: str) -> None:
    """Check what a launch says of the model, and that no id or position is beyond its tables."""
    attrs, model = launch.attrs, manifest.model
    if launch.op == "embed":
        _expect_at_least(model.vocab_size, attrs["vocab"], f"{where}: vocab")
    if launch.op == "rope_store_kv":
        angles = program.buffers[launch.inputs[1]].shape[0]
        longest = manifest.limits.max_model_len
        _expect_at_least(longest, angles, f"{where}: positions of {launch.inputs[1]}")
    if "layer" not in attrs:
        return
    layer = attrs["layer"]
    if not isinstance(layer, int) or layer >= model.kv.layers:
        raise ProgramInvalidError(
            f"{where}: expected a layer below {model.kv.layers}, found {layer}"
        )
    for name in ("heads", "kv_heads", "head_dim"):
        if attrs[name] != getattr(model, name):
            raise ProgramInvalidError(
                f"{where}: {name}: expected {getattr(model, name)}, found {attrs[name]}"
            )


def _expect_at_least(wanted: int, found: Any, where: str) -> None:
    if not isinstance(found, int) or found < wanted:
        raise ProgramInvalidError(f"{where}: expected at least {wanted}, found {found}")


def _check_output(program: Program, width: int) -> None:
    outputs = [
        (buffer.dtype, buffer.shape)
        for buffer in program.buffers.values()
        if buffer.space is Space.OUTPUT
    ]
    if outputs != [("f32", ("logits", width))]:
        raise ProgramInvalidError(
            f"program {program.name}: expected one output f32 [logits, {width}], found "
            + ", ".join(f"{dtype} {list(shape)}" for dtype, shape in outputs)
        )


def _check_weights(launch: Launch, program: Program, tables: _Tables, where: str) -> None:
    for name in launch.inputs:
        buffer = program.buffers[name]
        if buffer.space is not Space.WEIGHT:
            continue
        tensor = tables.tensors.get(name)
        if tensor is None:
            raise ProgramInvalidError(f"{where}: weight {name!r} is not in the storage table")
        _check_stored(buffer, tensor, where)
    check = _PACKED.get(launch.op)
    if check is not None:
        n, k = check(launch)
        tensor = tables.tensors[launch.inputs[1]]
        stored = (tensor.layout, _padded(tensor.n), tensor.k)
        if stored != (launch.attrs["layout"], _padded(n), k):
            raise ProgramInvalidError(
                f"{where}: expected {launch.attrs['layout']} [{n}, {k}], "
                f"found {tensor.name} {tensor.layout} [{tensor.n}, {tensor.k}]"
            )
    if "prompt_layout" in launch.attrs:
        _check_second(launch, tables, where)


def _check_second(launch: Launch, tables: _Tables, where: str) -> None:
    """The weight of the prompt role is the same one, in the layout that the launch says."""
    first, second = (tables.tensors[name] for name in launch.inputs[1:3])
    wanted = (first.weight, launch.attrs["prompt_layout"], first.n, first.k)
    found = (second.weight, second.layout, second.n, second.k)
    if wanted != found:
        raise ProgramInvalidError(
            f"{where}: expected for the prompt role weight {wanted[0]} as {wanted[1]} "
            f"[{first.n}, {first.k}], found {second.name}: weight {found[0]} as {found[1]} "
            f"[{second.n}, {second.k}]"
        )


def _check_stored(buffer: Buffer, tensor: StorageTensor, where: str) -> None:
    if (_DTYPES[buffer.dtype], buffer.shape) != (tensor.dtype, tensor.shape):
        raise ProgramInvalidError(
            f"{where}: expected {buffer.name} {_DTYPES[buffer.dtype]} {list(buffer.shape)}, "
            f"stored is {tensor.dtype} {list(tensor.shape)}"
        )


def _sizes(first: str, second: str) -> Callable[[Launch], tuple[Any, Any]]:
    return lambda launch: (launch.attrs[first], launch.attrs[second])


_PACKED = {"embed": _sizes("vocab", "width"), "linear": _sizes("n", "k")}
"""Ops whose second input is a packed weight, and its logical sizes n and k."""


def _padded(n: Any) -> int:
    """Round up to whole panels: a head may be used with its padded width."""
    return -(-int(n) // PANEL) * PANEL


def _note_classes(
    launch: Launch,
    weight: str,
    classes: dict[tuple[str, str], tuple[str, str]],
    where: str,
) -> None:
    """Keep each (weight, role)'s class; a second one would break row invariance."""
    for role in _ROLES:
        found = str(launch.attrs[f"{role}_class"])
        first, first_where = classes.setdefault((weight, role), (found, where))
        if found != first:
            raise NumericsConflictError(
                f"{where}: weight {weight} has {role} class {found}, and {first} in {first_where}"
            )


def numerics_classes(catalog: Catalog) -> dict[tuple[str, str], str]:
    """Return the class of each (weight, role) that a validated catalog computes."""
    weights = {tensor.name: tensor.weight for tensor in catalog.storage}
    bodies = {id(program.launches): program.launches for program in catalog.programs.values()}
    return {
        (weights[launch.inputs[1]], role): str(launch.attrs[f"{role}_class"])
        for launches in bodies.values()
        for launch in launches
        if launch.op == "linear"
        for role in _ROLES
    }
