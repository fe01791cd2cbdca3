"""Paged key/value cache: blocks, prefix cache, block tables."""
