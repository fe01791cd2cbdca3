"""The listening socket, bound before anything slow so that a taken port is told at once."""

import errno
import os
import socket

from engine.errors import SettingsError

BACKLOG = 2048


def bind(host: str, port: int) -> socket.socket:
    """Bind and listen; port 0 takes a free one. Raises SettingsError naming host or port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    flags = socket.AI_PASSIVE
    try:
        info = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM, 0, flags)
        return _listen(info[0][4], info[0][0])
    except socket.gaierror as exc:
        raise SettingsError(f"cannot resolve the host {host!r}: {exc.strerror}") from exc
    except OSError as exc:
        raise _explain(host, port, exc) from exc


def url_of(listener: socket.socket) -> str:
    """The base URL to try; a wildcard address is shown as the loopback one."""
    host, port = listener.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"


def _listen(address: tuple[object, ...], family: int) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def _explain(host: str, port: int, exc: OSError) -> SettingsError:
    if exc.errno == errno.EADDRINUSE:
        hint = "stop what listens there, or choose another with --port (0 picks a free one)"
        return SettingsError(f"port {port} on {host} is in use", hint)
    if exc.errno == errno.EACCES:
        return SettingsError(f"no permission to listen on port {port}", "use a port above 1023")
    reason = os.strerror(exc.errno) if exc.errno else str(exc)
    return SettingsError(f"cannot listen on {host}:{port}: {reason}")
