"""Brings the manifest of an older format version up to the current one, before it is decoded.

Only what the older version cannot hold is added, with a value that says so; a key of a later
version in an older core is refused like any unknown key.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from engine.core.strict import Fault

Added = Mapping[str, Any]
_MANIFEST: Added = MappingProxyType({"machines": [], "step_times": [], "canaries": []})
_GRAPH: Added = MappingProxyType({"reason": ""})
_RECORD: Added = MappingProxyType({"reason": ""})
_CANDIDATE: Added = MappingProxyType({"low": None, "high": None, "checked": None, "refused": None})
"""What version 2 added to each record."""
_REPLACED_CLASSES = MappingProxyType({"bf16_t64": "bf16_r16t64"})
"""Numerics classes that no kernel has any more, and the ones that took their place: such rows may
differ in the last bits from what the version that wrote the core computed."""


def upgrade(values: dict[str, Any]) -> dict[str, Any]:
    """Return the manifest's JSON values in the current version, ``format_version`` as it was.

    ``values`` are of a readable version and are not changed. Values of a wrong type pass as they
    are, for the decoder to refuse. Raises Fault for a key that the version does not have.
    """
    if values["format_version"] != 1:
        return values
    newer = dict(_with(values, _MANIFEST))
    _upgrade_table(newer, "graphs", _GRAPH)
    _upgrade_table(newer, "tuning", _RECORD)
    if isinstance(newer.get("tuning"), list):
        for i, record in enumerate(newer["tuning"]):
            if isinstance(record, dict):
                _upgrade_table(record, "candidates", _CANDIDATE, f".tuning[{i}]")
    if isinstance(newer.get("kernels"), list):
        newer["kernels"] = [_with_present_classes(kernel) for kernel in newer["kernels"]]
    return newer


def _upgrade_table(owner: dict[str, Any], table: str, added: Added, where: str = "") -> None:
    """Replace a table, where it is one, by one whose entries have the added keys."""
    entries = owner.get(table)
    if isinstance(entries, list):
        owner[table] = [
            _with(entry, added, f"{where}.{table}[{i}]") for i, entry in enumerate(entries)
        ]


def _with(entry: Any, added: Added, where: str = "") -> Any:
    if not isinstance(entry, dict):
        return entry
    early = sorted(entry.keys() & added.keys())
    if early:
        raise Fault("no such key in format version 1", "a later version's", f"{where}.{early[0]}")
    return {**entry, **added}


def _with_present_classes(kernel: Any) -> Any:
    if not isinstance(kernel, dict):
        return kernel
    present = dict(kernel)
    for role in ("prompt_class", "generated_class"):
        named = kernel.get(role)
        if isinstance(named, str) and named in _REPLACED_CLASSES:
            present[role] = _REPLACED_CLASSES[named]
    return present
