"""Addresses of a server: bound without taking them from another one, and given back."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from speculant_graph.errors import ConfigError
from speculant_graph.rpc.addresses import grpc_target, socket_path

_REASONS = {
    errno.EADDRINUSE: "another program listens there; stop it or choose another port",
    errno.EADDRNOTAVAIL: "it is no address of this machine; choose 0.0.0.0, for all of its addresses, or one of them",
    errno.EACCES: "this user may not; choose another port, above 1023",
}
_NOT_OURS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""Why one address of a name may be left out, such as ::1 of localhost where there is no IPv6."""
_BACKLOG = 1_024
_CONNECT_TIMEOUT_S = 1.0


class Listener:
    """The addresses that a gRPC server is bound to."""

    def __init__(self, server: grpc.aio.Server, credentials: grpc.ServerCredentials | None) -> None:
        """Make a listener without addresses.

        Args:
            server: what is reached.
            credentials: TLS of TCP addresses; None serves them in the clear. Unix sockets always are.
        """
        self._server = server
        self._credentials = credentials
        self._paths: list[Path] = []
        self._locks: list[int] = []

    def bind(self, addresses: str, option: str) -> list[str]:
        """Bind addresses, separated by commas; return them with the ports that were given for port 0.

        Args:
            addresses: to be bound.
            option: of the command line, which sets them.

        Raises:
            ConfigError: one is malformed, or something else serves there; those before it are bound.
        """
        return [self._bind(address.strip(), option) for address in addresses.split(",")]

    def close(self) -> None:
        """Remove sockets and give up locks; the server must have stopped."""
        for path in self._paths:
            path.unlink(missing_ok=True)
        for lock in self._locks:
            os.close(lock)
        self._paths, self._locks = [], []

    def _bind(self, address: str, option: str) -> str:
        path = socket_path(address)
        # A client that can connect can draft and open sessions: only this user's may.
        previous_mask = os.umask(0o077)
        try:
            if path is not None:
                self._lock(path, option)
                _clear_stale_socket(path, option)
            if path is None and self._credentials is not None:
                port = self._server.add_secure_port(grpc_target(address), self._credentials)
            else:
                port = self._server.add_insecure_port(grpc_target(address))
        except (RuntimeError, OSError) as error:
            if path is None:
                _release(bind_tcp(address, option))  # raises with the reason, which gRPC does not
                raise _failure(address, "it was in use; try again, or choose another", option) from error
            reason = (
                f"{error.strerror}: {error.filename}" if isinstance(error, OSError) else "no socket can be made there"
            )
            raise _failure(address, f"{reason}; choose another path", option) from error
        finally:
            os.umask(previous_mask)
        if path is None:
            return f"{address.rpartition(':')[0]}:{port}"
        self._paths.append(path)
        return address

    def _lock(self, path: Path, option: str) -> None:
        """Make sure that of two servers that start at the same time one gives up. The lock's file stays for ever."""
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._locks.append(lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _taken(path, option) from None


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
                _release(sockets)
                raise _failure(address, failure, option) from error
        else:
            port = sockets[0].getsockname()[1]
    if not sockets:
        raise _failure(address, failure, option)
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


def _release(sockets: list[socket.socket]) -> None:
    for each in sockets:
        each.close()


def _failure(address: str, reason: str, option: str) -> ConfigError:
    return ConfigError(f"can't listen on {address}: {reason} with {option}")


def require_free(addresses: str, option: str) -> None:
    """Refuse what something else listens on, before anything takes long; nothing stays bound or is removed.

    Args:
        addresses: as :meth:`Listener.bind` takes them.
        option: of the command line, which sets them.

    Raises:
        ConfigError: a server answers at a Unix socket, or a TCP address can't be bound.
    """
    for address in filter(None, map(str.strip, addresses.split(","))):
        path = socket_path(address)
        if path is None:
            _release(bind_tcp(address, option))
        elif path.is_socket() and _is_answered(path):
            raise _taken(path, option)


def _clear_stale_socket(path: Path, option: str) -> None:
    """Remove the socket that a killed server left behind.

    gRPC would bind over any socket file and so take the address away from a server that runs.
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
