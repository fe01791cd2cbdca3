"""The CPU device: native replay of captured programs, native sampling, no tensor framework."""
