"""Whether a Hugging Face tokenizer begins prompts with BOS."""

from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer as Backend

from engine.errors import CheckpointError


def adds_bos(source: str, config: Mapping[str, Any], original: Backend, bos_id: int | None) -> bool:
    """Return whether encoding puts the begin token first.

    ``add_bos_token`` of the configuration decides when it is there; else the post-processor of
    ``tokenizer.json``. Raises CheckpointError for a tokenizer that adds anything else: what it adds
    would be lost.
    """
    before, after = _surroundings(original)
    explicit = config.get("add_bos_token")
    if config.get("add_eos_token") is True or (after and config.get("add_eos_token") is not False):
        raise CheckpointError(
            f"{source}: a tokenizer that ends prompts with tokens is not supported"
        )
    if isinstance(explicit, bool):
        if explicit and bos_id is None:
            raise CheckpointError(f"{source}: add_bos_token is true, but there is no bos_token")
        return explicit
    if before not in ([], [bos_id]):
        raise CheckpointError(f"{source}: prompts begin with tokens {before}, not with bos_token")
    return bool(before)


def _surroundings(backend: Backend) -> tuple[list[int], list[int]]:
    """Ids that the post-processor puts before and after a text."""
    plain = backend.encode("a", add_special_tokens=False).ids
    full = backend.encode("a", add_special_tokens=True).ids
    for start in range(len(full) - len(plain) + 1):
        if full[start : start + len(plain)] == plain:
            return full[:start], full[start + len(plain) :]
    return full, []
