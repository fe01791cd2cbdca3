"""Captured programs: types, verifier, printer."""
