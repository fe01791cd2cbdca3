"""Reads the bodies of messages and of token counts."""

from app.protocol.body import body_reader
from app.protocol.messages import COUNT_REFUSED, MESSAGE_REFUSED, CountRequest, MessageRequest

read_message = body_reader(MessageRequest, MESSAGE_REFUSED)
read_count = body_reader(CountRequest, COUNT_REFUSED)
