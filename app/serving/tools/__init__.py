"""How model families write tools into prompts and calls into text: one module per family."""
