"""Why a TCP address can't be listened on: servers of libraries say only that it can't."""

from __future__ import annotations

import errno
import socket

from speculant_graph.errors import ConfigError

_REASONS = {
    errno.EADDRINUSE: "another program listens there; stop it or choose another port",
    errno.EADDRNOTAVAIL: "it is no address of this machine; choose 0.0.0.0, for all of its addresses, or one of them",
    errno.EACCES: "this user may not; choose another port, above 1023",
}


def bind_failure(address: str, option: str) -> ConfigError:
    """Return the error that says why an address can't be bound, after a server has failed to.

    Args:
        address: ``host:port``.
        option: of the command line, which sets it.
    """
    return ConfigError(f"can't listen on {address}: {_reason(address)} with {option}")


def _reason(address: str) -> str:
    host, _, port = address.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return "there is no host of this name; choose another"
    for family, kind, protocol, _, where in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
                probe.bind(where)
                probe.listen()
        except OSError as error:
            reason = error.strerror or "it does not work"
            return _REASONS.get(error.errno or 0, f"{reason}; choose another")
    return "it was in use; try again, or choose another"
