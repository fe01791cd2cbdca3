"""Run planned launches and sample."""
