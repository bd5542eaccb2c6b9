"""Addresses of a server: bound without taking them from another one, and given back."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
from pathlib import Path
from typing import Any

from speculant_graph.errors import ConfigError

_REASONS = {
    errno.EADDRINUSE: "another program listens there; stop it or choose another port",
    errno.EADDRNOTAVAIL: "it is no address of this machine; choose 0.0.0.0, for all of its addresses, or one of them",
    errno.EACCES: "this user may not; choose another port, above 1023",
}
_NOT_OURS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""Why one address of a name may be left out, such as ::1 of localhost where there is no IPv6."""
_BACKLOG = 1_024
_CONNECT_TIMEOUT_S = 1.0


def bind_tcp(address: str, option: str) -> list[socket.socket]:
    """Listen on all addresses that a name stands for and this machine has.

    Args:
        address: ``host:port``; for port 0 all of them get the same free one.
        option: of the command line, which sets it.

    Raises:
        ConfigError: there is none, or one can't be listened on, and why.
    """
    host, _, port_text = address.rpartition(":")
    port, failure, sockets = int(port_text), "there is no host of this name; choose another", []
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        found = []
    for family, _, _, _, where in found:
        try:
            sockets.append(_listening(family, (where[0], port, *where[2:])))
        except OSError as error:
            failure = _REASONS.get(error.errno or 0, f"{error.strerror or 'it does not work'}; choose another")
            if error.errno not in _NOT_OURS:
                release(sockets)
                raise failure_of(address, failure, option) from error
        else:
            port = sockets[0].getsockname()[1]
    if not sockets:
        raise failure_of(address, failure, option)
    return sockets


def _listening(family: socket.AddressFamily, where: tuple[Any, ...]) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family is socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind(where)
        listening.listen(_BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


def release(sockets: list[socket.socket]) -> None:
    """Close sockets."""
    for each in sockets:
        each.close()


def failure_of(address: str, reason: str, option: str) -> ConfigError:
    """Return why an address can't be listened on."""
    return ConfigError(f"can't listen on {address}: {reason} with {option}")


def lock_socket(path: Path, option: str) -> int:
    """Make sure that of two servers that start at the same time one gives up; return the lock, a file that stays.

    Raises:
        ConfigError: another server has it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise _taken(path, option) from None
    return lock


def clear_stale_socket(path: Path, option: str) -> None:
    """Remove the socket that a killed server left behind.

    gRPC would bind over any socket file and so take the address away from a server that runs.

    Raises:
        ConfigError: a server answers there, or it is no socket.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"{path} exists and is not a socket; choose another path with {option}")
    if _is_answered(path):
        raise _taken(path, option)
    path.unlink(missing_ok=True)


def _is_answered(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_CONNECT_TIMEOUT_S)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            pass  # a full backlog or a lack of rights: a server is there
    return True


def _taken(path: Path, option: str) -> ConfigError:
    return ConfigError(f"another server answers on unix://{path}; stop it, or choose another path with {option}")
