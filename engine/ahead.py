"""What ``flare run`` begins before it imports anything heavy."""

from engine.core.hashing import EarlyHashing, hash_early

__all__ = ["EarlyHashing", "hash_early"]
