"""Reads the body that creates a response."""

from app.protocol.body import body_reader
from app.protocol.responses import RESPONSE_REFUSED, ResponseRequest

read_body = body_reader(ResponseRequest, RESPONSE_REFUSED)
