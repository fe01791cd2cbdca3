"""Tensor-parallel ranks."""
