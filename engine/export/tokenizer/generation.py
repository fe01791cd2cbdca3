"""Sampling defaults from ``generation_config.json``."""

from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from engine.errors import CheckpointError
from engine.text.info import GenerationDefaults

_FILE = "generation_config.json"


def generation_defaults(folder: Path, values: Mapping[str, Any]) -> GenerationDefaults:
    """Return what the checkpoint recommends. Raises CheckpointError for values out of range."""

    def number(key: str, low: float, high: float, *, above: bool = False) -> float | None:
        value = values.get(key)
        if value is None:
            return None
        fits = type(value) in (int, float) and isfinite(value) and low <= value <= high
        if not fits or (above and value == low):
            raise CheckpointError(
                f"{folder / _FILE}: {key} must be a number from {low} to {high}, "
                f"found {value!r:.80}"
            )
        return float(value)

    top_k = number("top_k", 0, 1 << 31)
    return GenerationDefaults(
        temperature=number("temperature", 0, 100),
        top_p=number("top_p", 0, 1, above=True),
        top_k=None if top_k is None else int(top_k),
        min_p=number("min_p", 0, 1),
        repetition_penalty=number("repetition_penalty", 0, 100, above=True),
    )
