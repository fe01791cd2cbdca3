"""Loads for servers, and the figures of what came back."""
