"""The JSON of a core: the manifest (``core.json``) and the programs (``programs.json``).

``programs.json`` is ``{"bodies": [...], "programs": {...}}``. Programs of one model differ in
their domain and arena offsets only, so a *body* (buffers without offsets, launches) is written
once and each program names its body and lists the offsets of that body's TEMP and OUTPUT
buffers, in order:

    body:    {"buffers": [{"name", "space", "dtype", "shape"}, ...],
              "launches": [{"op", "kernel", "inputs", "outputs", "attrs"}, ...]}
    program: {"body": index, "domain": {...}, "arena_bytes": n, "offsets": [...]}

Decoded programs of one body share its launches and its other buffers, object for object.
"""

import json
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from engine.core.digests import root_digest
from engine.core.errors import DigestMismatchError, FormatError, VersionError
from engine.core.paths import MANIFEST
from engine.core.schema import (
    READABLE_VERSIONS,
    Canary,
    Catalog,
    Graph,
    Identity,
    Kernel,
    Limits,
    Machine,
    Manifest,
    ModelSpec,
    Section,
    StepTime,
    StorageTensor,
    TuningRecord,
)
from engine.core.strict import Fault, decode_with, decoder_for, encode, parse_json, shown
from engine.core.upgrade import upgrade
from engine.ir.program import PLACED, Buffer, Dim, Domain, DType, Launch, Program, Space

PROGRAMS = "programs.json"


class _ManifestFile(Struct, frozen=True):
    """The keys of ``core.json``, in the order they are written."""

    format_version: int
    identity: Identity
    model: ModelSpec
    limits: Limits
    default_mixed: bool
    graphs: tuple[Graph, ...]
    kernels: tuple[Kernel, ...]
    tuning: tuple[TuningRecord, ...]
    machines: tuple[Machine, ...]
    step_times: tuple[StepTime, ...]
    canaries: tuple[Canary, ...]
    storage: tuple[StorageTensor, ...]
    sections: tuple[Section, ...]
    root_digest: str


class _ProgramEntry(Struct, frozen=True):
    body: int
    domain: Domain
    arena_bytes: int
    offsets: tuple[int, ...]


class _BodyBuffer(Struct, frozen=True):
    name: str
    space: Space
    dtype: DType
    shape: tuple[Dim, ...]


class _Body(Struct, frozen=True):
    buffers: tuple[_BodyBuffer, ...]
    launches: tuple[Launch, ...]


class _ProgramsFile(Struct, frozen=True):
    bodies: tuple[_Body, ...]
    programs: Mapping[str, _ProgramEntry]


def encode_manifest(manifest: Manifest) -> bytes:
    """Return ``core.json``: one line per entry of each table. The root digest is computed."""
    catalog = manifest.catalog
    sections = tuple(sorted(manifest.sections, key=lambda section: section.path))
    values = encode(
        _ManifestFile(
            manifest.format_version,
            manifest.identity,
            manifest.model,
            manifest.limits,
            manifest.default_mixed,
            catalog.graphs,
            catalog.kernels,
            catalog.tuning,
            catalog.machines,
            catalog.step_times,
            catalog.canaries,
            catalog.storage,
            sections,
            "",
        )
    )
    values["root_digest"] = root_digest(values)
    return _lines(values).encode()


def _lines(values: dict[str, Any]) -> str:
    """Dump an object with one line per key, and one per element of its arrays."""
    parts = []
    for key, value in values.items():
        if isinstance(value, list) and value:
            rows = ",\n  ".join(json.dumps(element, allow_nan=False) for element in value)
            parts.append(f" {json.dumps(key)}: [\n  {rows}\n ]")
        else:
            parts.append(f" {json.dumps(key)}: {json.dumps(value, allow_nan=False)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def decode_manifest(data: bytes, programs: Mapping[str, Program] | None = None) -> Manifest:
    """Decode ``core.json``; ``programs`` completes the catalog (empty when not given).

    A core of an older version in the window gets the defaults of what its version lacks; the
    manifest keeps that version. Raises VersionError, DigestMismatchError (root) or FormatError.
    """
    values = parse_json(data, MANIFEST)
    _check_version(values)
    stated = values.get("root_digest")
    try:
        actual = root_digest(values)
    except RecursionError as error:
        raise FormatError(MANIFEST, "JSON", "values nested too deeply") from error
    if stated != actual:
        raise DigestMismatchError(
            f"{MANIFEST}: root_digest: expected {shown(stated)}, found {actual}"
        )
    current = decode_with(upgrade, values, MANIFEST)
    file: _ManifestFile = decode_with(decoder_for(_ManifestFile), current, MANIFEST)
    catalog = Catalog(
        file.graphs,
        file.kernels,
        file.tuning,
        file.storage,
        programs or {},
        file.machines,
        file.step_times,
        file.canaries,
    )
    return Manifest(
        file.format_version,
        file.identity,
        file.model,
        file.limits,
        file.default_mixed,
        catalog,
        file.sections,
        file.root_digest,
    )


def _check_version(values: Any) -> None:
    def version(value: Any) -> Any:
        if type(value) is not dict:
            raise Fault("an object", shown(value))
        if type(value.get("format_version")) is not int:
            found = shown(value.get("format_version"))
            raise Fault("an integer", found, ".format_version")
        return value["format_version"]

    found = decode_with(version, values, MANIFEST)
    oldest, newest = READABLE_VERSIONS
    if not oldest <= found <= newest:
        window = f"{oldest} to {newest}" if oldest < newest else f"{newest}"
        raise VersionError(
            f"{MANIFEST}: format_version: expected {window}, found {shown(found)}",
            hint="use the Flare version that exported this core, or export it again",
        )


def encode_programs(programs: Mapping[str, Program]) -> bytes:
    """Return ``programs.json``. Bodies are shared between programs where they are equal."""
    bodies: list[_Body] = []
    entries: dict[str, Any] = {}
    for name, program in programs.items():
        body, offsets = _split(program)
        if body not in bodies:
            bodies.append(body)
        entry = _ProgramEntry(bodies.index(body), program.domain, program.arena_bytes, offsets)
        entries[name] = encode(entry)
    parts = ",\n".join(_encode_body(body) for body in bodies)
    lines = ",\n  ".join(
        f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in entries.items()
    )
    return f'{{"bodies": [\n{parts}\n ],\n "programs": {{\n  {lines}\n }}\n}}\n'.encode()


def _split(program: Program) -> tuple[_Body, tuple[int, ...]]:
    buffers = []
    offsets = []
    for buffer in program.buffers.values():
        buffers.append(_BodyBuffer(buffer.name, buffer.space, buffer.dtype, buffer.shape))
        if buffer.space in PLACED:
            if buffer.offset is None:
                raise ValueError(f"program {program.name}: {buffer.name} has no arena offset")
            offsets.append(buffer.offset)
    return _Body(tuple(buffers), program.launches), tuple(offsets)


def _encode_body(body: _Body) -> str:
    buffers = ",\n   ".join(json.dumps(encode(buffer)) for buffer in body.buffers)
    launches = ",\n   ".join(json.dumps(encode(launch)) for launch in body.launches)
    return f'  {{"buffers": [\n   {buffers}\n  ],\n  "launches": [\n   {launches}\n  ]}}'


def decode_programs(data: bytes) -> dict[str, Program]:
    """Decode ``programs.json``. Raises FormatError."""
    values = parse_json(data, PROGRAMS)
    file: _ProgramsFile = decode_with(decoder_for(_ProgramsFile), values, PROGRAMS)
    shared = [tuple(_fixed(slot) for slot in body.buffers) for body in file.bodies]
    programs = {}
    for name, entry in file.programs.items():
        where = f"{PROGRAMS}: programs.{shown(name)[1:-1]}"
        if not 0 <= entry.body < len(file.bodies):
            raise FormatError(f"{where}.body", f"below {len(file.bodies)}", str(entry.body))
        buffers = _placed(shared[entry.body], entry.offsets, where)
        launches = file.bodies[entry.body].launches
        programs[name] = Program(name, entry.domain, buffers, launches, entry.arena_bytes)
    return programs


def _fixed(slot: _BodyBuffer) -> Buffer:
    return Buffer(slot.name, slot.space, slot.dtype, slot.shape)


def _placed(slots: tuple[Buffer, ...], offsets: tuple[int, ...], where: str) -> dict[str, Buffer]:
    """Give each TEMP and OUTPUT buffer its offset; the others are shared as they are."""
    count = sum(slot.space in PLACED for slot in slots)
    if len(offsets) != count:
        raise FormatError(f"{where}.offsets", f"{count} offsets", str(len(offsets)))
    following = iter(offsets)
    buffers = {
        slot.name: Buffer(slot.name, slot.space, slot.dtype, slot.shape, next(following))
        if slot.space in PLACED
        else slot
        for slot in slots
    }
    if len(buffers) != len(slots):
        raise FormatError(f"{where}.body", "buffers with different names", "a name twice")
    return buffers
