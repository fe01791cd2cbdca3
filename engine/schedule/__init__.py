"""Scheduling policy: tokens and blocks, no graphs."""
