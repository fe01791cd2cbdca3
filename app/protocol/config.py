"""Body of ``POST /v1/config``."""

from app.protocol.body import RequestModel


class SwitchRequest(RequestModel):
    """The graph selection to serve from now on."""

    mixed_prefill: bool | None
