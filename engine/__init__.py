"""Flare's engine: export, load, schedule and run captured programs."""

__version__ = "0.1.0"
"""Version of Flare; the same as in pyproject.toml (a test compares)."""
