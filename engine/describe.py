"""The ``/v1/config`` object: what is loaded and how it is limited."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from engine.core.schema import Manifest
from engine.load.plan import RankPlan
from engine.load.prune import Counts
from engine.load.select import Selection


class Serving(Struct, frozen=True):
    """The limits in force. kv_blocks: those that sequences can own. workspace_bytes: taken."""

    max_num_seqs: int
    max_model_len: int
    max_step_tokens: int
    kv_blocks: int
    block_size: int
    prefix_cache: bool
    workspace_bytes: int


def describe(
    core_path: str,
    manifest: Manifest,
    selection: Selection,
    counts: Counts,
    plans: Sequence[RankPlan],
    serving: Serving,
) -> dict[str, Any]:
    """Build the object of ``GET /v1/config``, without ``version``."""
    model, identity = manifest.model, manifest.identity
    return {
        "object": "config",
        "model": {
            "id": model.id,
            "architecture": model.architecture,
            "context_length": serving.max_model_len,
            "quantization": model.quantization,
        },
        "core": {
            "path": core_path,
            "digest": manifest.root_digest,
            "format_version": manifest.format_version,
            "device": identity.device,
            "tuning": identity.tuning,
        },
        "graphs": {**served_graphs(selection, counts, serving.workspace_bytes), "epoch": 0},
        "ranks": [rank_values(plan) for plan in plans],
        "scheduler": {
            "max_num_seqs": serving.max_num_seqs,
            "max_model_len": serving.max_model_len,
            "max_step_tokens": serving.max_step_tokens,
            "kv_blocks": serving.kv_blocks,
            "block_size": serving.block_size,
        },
        "speculative": {"method": plans[0].speculative, "draft_tokens": plans[0].draft_tokens},
        "prefix_cache": {"enabled": serving.prefix_cache},
    }


def selection_values(selection: Selection, counts: Counts) -> dict[str, Any]:
    """Return the ``graphs`` object of ``/v1/config``."""
    return {
        "requested": selection.requested,
        "family": selection.family.value,
        "captured": dict(counts.captured),
        "retained": dict(counts.retained),
        "pruned": dict(counts.pruned),
        "ineligible": [{"id": name, "reason": why} for name, why in selection.ineligible],
        "kernels": {"captured": counts.kernels_captured, "retained": counts.kernels_retained},
        "storage_bytes": {
            "captured": counts.storage_bytes_captured,
            "loaded": counts.storage_bytes_loaded,
        },
        "workspace_bytes": {
            "captured": counts.workspace_bytes_captured,
            "retained": counts.workspace_bytes_retained,
        },
    }


def served_graphs(selection: Selection, counts: Counts, reserved: int) -> dict[str, Any]:
    """Return the ``graphs`` object, with the bytes of workspace that the device took."""
    values = selection_values(selection, counts)
    workspace: Mapping[str, int] = values["workspace_bytes"]
    return {**values, "workspace_bytes": {**workspace, "reserved": reserved}}


def rank_values(plan: RankPlan) -> dict[str, Any]:
    """Return a rank's object in ``ranks``."""
    return {
        "rank": plan.rank,
        "device": plan.device,
        "family": plan.family.value,
        "catalog_digest": plan.catalog_digest,
        "retained": len(plan.retained),
    }
