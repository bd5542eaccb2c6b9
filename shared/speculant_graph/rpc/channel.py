"""Addresses of a drafter, and how a channel to it behaves."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import grpc

from speculant_graph.errors import ConfigError

MAX_MESSAGE_BYTES = 1 << 20
"""Largest message a client takes or sends; the server's default as well."""

MAX_SOCKET_PATH_BYTES = 107
"""Length limit of the path of a Unix socket on Linux."""

_UNIX_PREFIX = "unix://"


def socket_path(address: str) -> Path | None:
    """Return the path of a ``unix:///path`` address, or None for ``host:port``.

    Raises:
        ConfigError: it is neither, or the path is too long for a socket.
    """
    if address.startswith(_UNIX_PREFIX + "/"):
        path = Path(address.removeprefix(_UNIX_PREFIX))
        num_bytes = len(str(path).encode())
        if num_bytes > MAX_SOCKET_PATH_BYTES:
            raise ConfigError(
                f"the socket path {path} has {num_bytes} bytes; choose one of at most {MAX_SOCKET_PATH_BYTES}"
            )
        return path
    host, separator, port = address.rpartition(":")
    # Brackets tell the port of an IPv6 address from its last group.
    is_plain_host = "/" not in host and (":" not in host or (host.startswith("[") and host.endswith("]")))
    if separator and host and is_plain_host and port.isascii() and port.isdigit() and int(port) < 1 << 16:
        return None
    raise ConfigError(f"{address!r} is not an address; write unix:///path/to.sock or host:port")


def grpc_target(address: str) -> str:
    """Return ``address`` in the form that gRPC takes, for clients and servers alike.

    Raises:
        ConfigError: it is neither ``unix:///path`` nor ``host:port``.
    """
    path = socket_path(address)
    return address if path is None else _UNIX_PREFIX + quote(str(path))


def message_limits(max_message_bytes: int) -> list[tuple[str, int]]:
    """Return the options of a channel or a server that limit its messages."""
    return [
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_receive_message_length", max_message_bytes),
    ]


def connect_channel(address: str) -> grpc.Channel:
    """Return a channel to a drafter. It connects on first use and reconnects by itself.

    Raises:
        ConfigError: the address has neither of the two forms.
    """
    # gRPC's default backoff of a second and more would leave a restarted drafter unused for that long.
    options = [
        ("grpc.initial_reconnect_backoff_ms", 50),
        ("grpc.min_reconnect_backoff_ms", 50),
        ("grpc.max_reconnect_backoff_ms", 200),
        # Two clients in one process must not share a connection, nor its flow control.
        ("grpc.use_local_subchannel_pool", 1),
        *message_limits(MAX_MESSAGE_BYTES),
    ]
    return grpc.insecure_channel(grpc_target(address), options=options)
