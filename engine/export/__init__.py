"""Export: checkpoint to core."""
