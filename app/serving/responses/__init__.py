"""``/v1/responses``: items to conversations, turns to response objects, and their store."""
