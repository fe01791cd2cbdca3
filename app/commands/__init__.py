"""Subcommands of ``flare``: one file each."""
