"""Model definitions: one function per architecture that records a program."""
