"""Checkpoint readers: GGUF files and safetensors directories behind one interface."""
