"""The HTTP face of Flare and its command line."""
