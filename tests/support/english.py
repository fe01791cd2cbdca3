"""English prose that every Python carries: the language reference of its own help texts."""

from pydoc_data import topics


def english() -> str:
    """Return about 460,000 characters of prose with some code (PSF licence, not copied here)."""
    return "\n".join(text for _, text in sorted(topics.topics.items()))
