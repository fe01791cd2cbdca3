"""Tuning: which kernel variants a core's launches name, and the records of why (docs/tuning.md)."""
