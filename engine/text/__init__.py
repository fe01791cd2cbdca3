"""Tokenizer, detokenizer, stop strings and chat templates."""
