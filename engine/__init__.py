"""Flare's engine: export, load, schedule and run captured programs."""
