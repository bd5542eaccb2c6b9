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
    reasons = filter(None, _reasons(address))
    return _failure(address, next(reasons, "it was in use; try again, or choose another"), option)


def require_free_port(address: str, option: str) -> None:
    """Refuse an address that no server could be bound to now; nothing stays bound.

    Args:
        address: ``host:port``.
        option: of the command line, which sets it.

    Raises:
        ConfigError: nothing that the name stands for can be bound, and why.
    """
    reasons = _reasons(address)
    if reasons[0] is not None and None not in reasons:
        raise _failure(address, reasons[0], option)


def _failure(address: str, reason: str, option: str) -> ConfigError:
    return ConfigError(f"can't listen on {address}: {reason} with {option}")


def _reasons(address: str) -> list[str | None]:
    """Return, for each address that a name stands for, why it can't be bound; None for one that can."""
    host, _, port = address.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ["there is no host of this name; choose another"]
    reasons: list[str | None] = []
    for family, kind, protocol, _, where in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
                probe.bind(where)
                probe.listen()
        except OSError as error:
            reason = error.strerror or "it does not work"
            reasons.append(_REASONS.get(error.errno or 0, f"{reason}; choose another"))
        else:
            reasons.append(None)
    return reasons
