"""``/v1/messages``: Anthropic's messages to conversations, and turns to their message objects."""
