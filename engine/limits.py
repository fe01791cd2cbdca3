"""What a run allows: the core's limits, or lower ones that the configuration asks for."""

from engine.config import EngineConfig
from engine.core.schema import Manifest
from engine.errors import SettingsError
from engine.load.select import LoadLimits, decode_capacity

DRAFT_TOKENS = 4
"""Draft tokens of a speculative step, unless the configuration says how many."""


def run_limits(config: EngineConfig, manifest: Manifest) -> LoadLimits:
    """Resolve the limits and the device. Raises SettingsError naming the setting at fault."""
    check_supported(config, manifest)
    exported = manifest.limits
    return LoadLimits(
        lowered("max_num_seqs", config.max_num_seqs, exported.max_num_seqs),
        lowered("max_model_len", config.max_model_len, exported.max_model_len),
        lowered("max_step_tokens", config.max_step_tokens, exported.max_step_tokens),
        manifest.identity.device if config.device == "auto" else config.device,
        config.speculative,
        _draft_tokens(config, manifest),
    )


def _draft_tokens(config: EngineConfig, manifest: Manifest) -> int:
    """Drafts per step: those asked for, or as many as decode graphs take, up to the default."""
    if config.speculative == "off" or config.draft_tokens:
        return config.draft_tokens
    return max(1, min(DRAFT_TOKENS, decode_capacity(manifest.catalog.graphs) - 1))


def lowered(name: str, asked: int | None, exported: int) -> int:
    """Return the limit asked for, or the exported one. Raises SettingsError when it is higher."""
    if asked is None:
        return exported
    if asked < 1:
        raise SettingsError(f"{name} must be at least 1, not {asked}")
    if asked > exported:
        raise SettingsError(
            f"{name} {asked} is above what the core was exported for ({exported})",
            hint=f"a run can only lower it; export the core again with a higher {name}",
        )
    return asked


def check_supported(config: EngineConfig, manifest: Manifest) -> None:
    """Refuse by name what this engine does not serve. Raises SettingsError."""
    if config.speculative == "mtp":
        raise SettingsError(
            "speculative mtp is not supported: only off and ngram are",
            hint="set FLARE_SPECULATIVE to ngram, or leave it out",
        )
    if config.draft_tokens < 0:
        raise SettingsError(f"draft_tokens must be at least 0, not {config.draft_tokens}")
    if config.draft_tokens and config.speculative == "off":
        raise SettingsError(f"draft_tokens {config.draft_tokens} needs a speculative method")
    size = manifest.identity.tensor_parallel_size
    if config.tensor_parallel_size not in (None, size):
        raise SettingsError(
            f"tensor_parallel_size {config.tensor_parallel_size} does not match the core, "
            f"which was exported for {size}"
        )
    if size > 1:
        raise SettingsError(
            f"tensor_parallel_size {size} is not supported: only 1 is",
            hint="export the core with --tensor-parallel-size 1",
        )
    for name in ("threads", "max_queue", "kv_cache_bytes"):
        value = getattr(config, name)
        if value is not None and value < 1:
            raise SettingsError(f"{name} must be at least 1, not {value}")
