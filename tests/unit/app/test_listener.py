"""The listening socket: addresses, URLs to show, errors with names."""

import socket

import pytest

from app.listener import bind, url_of
from engine.errors import SettingsError


@pytest.mark.parametrize(
    ("host", "shown"),
    [
        ("127.0.0.1", "http://127.0.0.1:"),
        ("0.0.0.0", "http://127.0.0.1:"),
        ("localhost", "http://127.0.0.1:"),
        ("::1", "http://[::1]:"),
    ],
)
def test_the_url_can_be_called(host: str, shown: str) -> None:
    with bind(host, 0) as listener:
        url = url_of(listener)
        assert url.startswith(shown)
        port = int(url.rpartition(":")[2])
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family) as client:
            client.connect(("::1" if ":" in host else "127.0.0.1", port))


def test_a_taken_port_is_named() -> None:
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match=f"port {port} on 127.0.0.1 is in use"):
            bind("127.0.0.1", port)


def test_a_host_that_is_not_ours_is_named() -> None:
    with pytest.raises(SettingsError, match=r"cannot listen on 192\.0\.2\.1"):
        bind("192.0.2.1", 0)
    with pytest.raises(SettingsError, match="resolve"):
        bind("no host", 0)
