"""Devices that instantiate and replay programs."""
