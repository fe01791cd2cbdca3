"""Reference device: every program in torch float32, as the oracle."""
