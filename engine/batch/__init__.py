"""Cover scheduled rows with catalog graphs."""
