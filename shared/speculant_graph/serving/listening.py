"""Addresses of a server: bound without taking them from another one, and given back."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
from pathlib import Path

import grpc
import grpc.aio

from speculant_graph.errors import ConfigError
from speculant_graph.rpc.addresses import grpc_target, socket_path

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

    def bind(self, addresses: str) -> list[str]:
        """Bind addresses, separated by commas; return them with the ports that were given for port 0.

        Raises:
            ConfigError: one is malformed, or something else serves there; those before it are bound.
        """
        return [self._bind(address.strip()) for address in addresses.split(",")]

    def close(self) -> None:
        """Remove sockets and locks; the server must have stopped."""
        for path in self._paths:
            path.unlink(missing_ok=True)
        for lock in self._locks:
            os.close(lock)
        self._paths, self._locks = [], []

    def _bind(self, address: str) -> str:
        path = socket_path(address)
        # Whoever can connect can draft and open sessions: nobody but this user.
        previous_mask = os.umask(0o077)
        try:
            if path is not None:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._lock(path)
                _clear_stale_socket(path)
            if path is None and self._credentials is not None:
                port = self._server.add_secure_port(grpc_target(address), self._credentials)
            else:
                port = self._server.add_insecure_port(grpc_target(address))
        except (RuntimeError, OSError) as error:
            raise ConfigError(f"can't listen on {address}: in use or not writable; choose another") from error
        finally:
            os.umask(previous_mask)
        if path is None:
            return f"{address.rpartition(':')[0]}:{port}"
        self._paths.append(path)
        return address

    def _lock(self, path: Path) -> None:
        """Make sure that of two servers that start at the same time one gives up."""
        descriptor = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._locks.append(descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _taken(path) from None


def _clear_stale_socket(path: Path) -> None:
    """Remove the socket that a killed server left behind.

    gRPC would bind over any socket file and so take the address away from a server that lives.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"{path} exists and is not a socket; choose another path")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_CONNECT_TIMEOUT_S)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except OSError:
            pass  # a full backlog or a lack of rights: somebody is there
    raise _taken(path)


def _taken(path: Path) -> ConfigError:
    return ConfigError(f"another server answers on unix://{path}; stop it or choose another path")
