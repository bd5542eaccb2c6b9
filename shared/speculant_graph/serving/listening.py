"""Addresses of a server: bound without taking them from another one, and given back."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
from pathlib import Path

from speculant_graph.errors import ConfigError

_REASONS = {
    errno.EADDRINUSE: "another program listens there; stop it or choose another port",
    errno.EADDRNOTAVAIL: "it is no address of this machine; choose 0.0.0.0, for all of its addresses, or one of them",
    errno.EACCES: "this user may not; choose another port, above 1023",
}
_BACKLOG = 1_024
_PROBE_S = 1.0


def bind_tcp(address: str, option: str) -> socket.socket:
    """Listen on an address.

    Args:
        address: ``host:port``; port 0 takes a free one.
        option: of the command line, which sets it.

    Raises:
        ConfigError: it can't be listened on, and why.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, int(port)), family=family, backlog=_BACKLOG)
    except (socket.gaierror, UnicodeError) as error:
        raise failure_of(address, "there is no host of this name; choose another", option) from error
    except OSError as error:
        reason = _REASONS.get(error.errno or 0, f"{error.strerror or 'it does not work'}; choose another")
        raise failure_of(address, reason, option) from error


def failure_of(address: str, reason: str, option: str) -> ConfigError:
    """Return why an address can't be listened on."""
    return ConfigError(f"can't listen on {address}: {reason} with {option}")


def lock_socket(path: Path, option: str) -> int:
    """Take a socket's path for this process alone, and remove the socket that a killed server left there.

    gRPC would bind over any socket file and so take the address away from a server that runs.

    Returns:
        The lock, a file that stays.

    Raises:
        ConfigError: another server has it, or there is something that is no socket.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    taken = ConfigError(f"another server answers on unix://{path}; stop it, or choose another path with {option}")
    lock = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.lexists(path):
            if not stat.S_ISSOCK(path.lstat().st_mode):
                raise ConfigError(f"{path} exists and is not a socket; choose another path with {option}")
            with socket.socket(socket.AF_UNIX) as probe:  # one of a program that takes no such lock
                probe.settimeout(_PROBE_S)
                if probe.connect_ex(str(path)) != errno.ECONNREFUSED:
                    raise taken
            path.unlink()
    except BlockingIOError:
        os.close(lock)
        raise taken from None
    except BaseException:
        os.close(lock)
        raise
    return lock
