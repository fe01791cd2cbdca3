"""Registry of operations and their kernels; packed weight layouts."""
