"""How large a grammar may be: what compiles in a fraction of a second, on a bounded stack."""

MAX_TEXT = 256 * 1024
"""Characters of a schema or of a Lark grammar."""
MAX_PATTERN = 64 * 1024
"""Characters of a regular expression."""
MAX_DEPTH = 64
"""Objects and arrays that a schema nests."""
MAX_SUBSCHEMAS = 4096
"""Schemas within a schema."""
MAX_PROPERTIES = 1024
"""Properties of one object; compiling them takes time in the square of their number."""
MAX_CHOICES = 4096
"""Strings to choose from."""
MAX_RULES = 512
"""Rules of a Lark grammar: the compiler follows them by recursion."""
MAX_GBNF = 16 * 1024
"""Characters of a grammar in llama.cpp's notation, which is converted in Python."""
COMPILE_SECONDS = 1.0
"""How long a request waits for its grammar to be compiled."""


def check_length(text: str, most: int) -> None:
    """Raise ValueError for a text of more than ``most`` characters."""
    if len(text) > most:
        raise ValueError(f"has {len(text)} characters, more than {most}")
